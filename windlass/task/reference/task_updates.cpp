#include "windlass/task/reference/task_updates.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass::reference {

std::vector<bool> TaskUpdates::elements_of(BufferId id, int64_t member, int32_t shared) const {
  const Shape& whole = shape(tasks_[id].tensor);
  const Region region = region_of(held_.layout(id), whole, member);
  const int64_t elements = element_count(local_shape(region));
  const Range mine = share_of(elements, tasks_.digit_sets[static_cast<size_t>(shared)], member);
  std::vector<bool> has(static_cast<size_t>(element_count(whole)), false);
  for (int64_t i = mine.begin; i < mine.end; ++i)
    has[static_cast<size_t>(whole_element(region, i))] = true;
  return has;
}

void TaskUpdates::add_squares(TaskId id) {
  const Task& task = tasks_[id];
  const Use* target = nullptr;
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == UseKind::Squares) target = &use;
  ensure(target != nullptr, "squares go nowhere");
  for (int64_t member : held_.members(target->buffer)) {
    double sum = target->adds ? held_.at(target->buffer, member)[0].values[0] : 0;
    for (const Use& use : tasks_.uses_of(id)) {
      if (use.kind != UseKind::Gradient) continue;
      ensure(use.view < 0, "squares are of a view");
      const Shape& whole = shape(tasks_[use.buffer].tensor);
      const Region region = region_of(held_.layout(use.buffer), whole, member);
      std::vector<bool> counts = elements_of(use.buffer, member, task.how);
      for (int64_t before = 0; before < member; ++before) {
        const std::vector<bool> theirs = elements_of(use.buffer, before, task.how);
        for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts[i] && !theirs[i];
      }
      const int64_t elements = element_count(local_shape(region));
      const Range mine =
          share_of(elements, tasks_.digit_sets[static_cast<size_t>(task.how)], member);
      const Array& array = held_.at(use.buffer, member)[0];
      const bool part = tasks_[use.buffer].share != 0;
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        if (!counts[static_cast<size_t>(whole_element(region, i))]) continue;
        const double value = array.values.at(static_cast<size_t>(part ? i - mine.begin : i));
        sum += value * value;
      }
    }
    held_.put(target->buffer, member, {Array(shape(training_.squares), sum)});
  }
}

void TaskUpdates::update(TaskId id) {
  const Task& task = tasks_[id];
  std::map<uint32_t, Operands> updates;
  std::vector<const Use*> squares;
  for (const Use& use : tasks_.uses_of(id)) {
    if (use.kind == UseKind::Squares) {
      squares.push_back(&use);
      continue;
    }
    Operands& operands = updates[use.index];
    if (use.kind == UseKind::Gradient) operands.gradients.push_back(&use);
    if (use.kind == UseKind::Weight) operands.weight = &use;
    if (use.kind == UseKind::State) operands.state = &use;
  }
  for (const auto& [u, operands] : updates) {
    ensure(operands.weight != nullptr && !operands.gradients.empty(), "an update lacks operands");
    std::vector<int64_t> done;  // what one host holds for several members is updated once
    for (int64_t member : held_.members(operands.weight->buffer)) {
      const int64_t key = held_.key(operands.weight->buffer, member);
      const bool host = task.kind == TaskKind::HostUpdate;
      const int64_t whose = host ? held_.key(operands.gradients[0]->buffer, member, task.how) : key;
      if (std::ranges::find(done, whose) != done.end()) continue;
      done.push_back(whose);
      double sum = 0;
      for (const Use* use : squares) {
        const Array& term = held_.at(use->buffer, member)[0];
        ensure(term.values.size() == 1, "squares are not one number");
        sum += term.values[0];
      }
      const double scale = squares.empty() ? 1 : clip_scale(training_.options.clip_norm, sum);
      update(u, operands, member, task.how, scale);
    }
  }
}

void TaskUpdates::update(uint32_t u, const Operands& operands, int64_t member, int32_t shared,
                         double scale) {
  const Op& op = update_op(u);
  const BufferId weight = operands.weight->buffer;
  const Region region = region_of(held_.layout(weight), shape(op.inputs[0]), member);
  const int64_t elements = element_count(local_shape(region));
  const auto& digits = tasks_.digit_sets[static_cast<size_t>(shared)];
  const Range mine = share_of(elements, digits, member);
  const auto part = [&](const Array& array) {
    if (static_cast<int64_t>(array.values.size()) == mine.size()) return array.values;
    ensure(static_cast<int64_t>(array.values.size()) == elements, "a share is of another size");
    return std::vector<double>(array.values.begin() + mine.begin, array.values.begin() + mine.end);
  };
  std::vector<double> gradient(static_cast<size_t>(mine.size()), 0);
  for (const Use* use : operands.gradients) {
    const HeldValues::Seen seen = held_.see(*use, member);
    ensure(tasks_[use->buffer].share != 0 || seen.region == region,
           "a gradient does not lie like its weight");
    const std::vector<double> term = part(seen.array);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += term[i];
  }
  note_gradient(u, region, mine, gradient);
  for (double& value : gradient) value *= scale;
  const bool master = op.inputs.size() > 2 && op.inputs[2].valid();
  HeldValues::Arrays none;
  HeldValues::Arrays& state =
      operands.state == nullptr ? none : held_.at(operands.state->buffer, member);
  std::vector<std::vector<double>> moments;
  for (size_t i = master ? 1 : 0; i < state.size(); ++i) moments.push_back(part(state[i]));
  if (master && !held_.there(weight, member))
    held_.put(weight, member, {Array({mine.size()})});  // rounded from the master copy
  Array& target = held_.at(weight, member)[0];
  std::vector<double> values = master ? part(state[0]) : part(target);
  reference_update(std::get<UpdateAttrs>(op.attrs).optimizer, start_.hyperparameters, start_.step,
                   values, gradient, moments);
  const auto put_back = [&](Array& array, const std::vector<double>& from) {
    const bool whole = array.values.size() != from.size();
    // What belongs to others is old until they send the new; on a host it is one copy for all.
    if (whole && tasks_[tasks_[weight].memory].team.valid())
      std::ranges::fill(array.values, std::nan(""));
    std::ranges::copy(from, array.values.begin() + (whole ? mine.begin : 0));
  };
  put_back(target, values);
  if (master) put_back(state[0], values);
  for (size_t i = 0; i < moments.size(); ++i) put_back(state[i + (master ? 1 : 0)], moments[i]);
}

void TaskUpdates::note_gradient(uint32_t u, const Region& region, const Range& mine,
                                const std::vector<double>& gradient) {
  Array piece(local_shape(region), std::nan(""));
  std::ranges::copy(gradient, piece.values.begin() + mine.begin);
  Region all;
  for (int64_t size : end_.gradients[u].shape) all.push_back({size, {0, size}, 1});
  Array seen(end_.gradients[u].shape, std::nan(""));
  reference::transfer(piece, region, seen, all);
  for (size_t i = 0; i < seen.values.size(); ++i) {
    if (std::isnan(seen.values[i])) continue;
    double& known = end_.gradients[u].values[i];
    ensure(std::isnan(known) || std::abs(known - seen.values[i]) <= 1e-9 * (1 + std::abs(known)),
           fmt::format("members have different gradients of \"{}\": {} and {}",
                       training_.graph[update_op(u).inputs[0]].name, known, seen.values[i]));
    known = seen.values[i];
  }
}

}  // namespace windlass::reference
