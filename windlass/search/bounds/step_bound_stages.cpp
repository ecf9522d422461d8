// Pipelines: what each stage takes of the compute lane of its group for one micro-batch, with what
// the lane waits for inside of it (step_bound_windows.cpp), after one micro-batch has come to it
// and before one has gone back; and what becomes of its weights after the last one.

#include <algorithm>

#include "windlass/graph/op_info.h"
#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

constexpr size_t kKnownParts = 1 << 16;

}  // namespace

// Of the weights that the op is the first to use.
void StepBound::State::time_weights(size_t op, StageTimes& times) {
  for (int32_t u : updates_of[op]) {
    const auto at = static_cast<size_t>(u);
    const auto input = static_cast<size_t>(facts.first_use[at].second);
    const OpTemplate& made = *chosen[op]->made;
    const OperandTemplate& gradient = made.input_gradients()[input];
    const int32_t digits = tables.partial_digits(gradient.layout);
    const auto parts = static_cast<double>(tables.members(digits));
    const Residency& residency = strategy->weights[at];
    const OperandTemplate weight =
        tables.kept_weight(facts.updates[at].weight, made.inputs()[input]);
    if (!residency.host_update)
      times.update += kRounding * static_cast<double>(weight.elements) /
                      (residency.zero > 0 ? parts : 1) * update_price();
    // What other ops add to the sum may lie otherwise, and what overlaps is added up elsewhere.
    if (parts == 1 || terms_of[at] != 1 || tables.layout(gradient.layout).halo()) continue;
    const auto& [scatter, gather] = reduce_price(digits);
    times.reduction += kRounding * (residency.zero == 0 ? scatter + gather : scatter) *
                       static_cast<double>(gradient.elements * facts.updates[at].gradient_size);
  }
}

// Windows are cut at the ends of the stage.
StepBound::State::Delays StepBound::State::delays_of_stage(size_t s) {
  const Stage& stage = strategy->stages[s];
  const auto stage_first = static_cast<size_t>(stage.first),
             stage_last = static_cast<size_t>(stage.last);
  Delays sum;
  for (size_t w = window_of[stage_first]; w < windows.size() && windows[w].first < stage_last;
       ++w) {
    Window cut = {.entry = std::max(windows[w].first, stage_first),
                  .first = std::max(windows[w].first, stage_first),
                  .last = std::min(windows[w].last, stage_last)};
    part = {group, static_cast<int32_t>(cut.first), static_cast<int32_t>(cut.last),
            (cut.first == stage_first ? 1 : 0) + (cut.last == stage_last ? 2 : 0)};
    for (size_t i = cut.first; i < cut.last; ++i)
      part.push_back(known_ids[static_cast<size_t>(strategy->ops[i])]);
    auto found = part_delays.find(part);
    if (found == part_delays.end()) {
      if (!backward_of.empty()) {
        cut.back_first = backward_ops.size();
        for (size_t i = cut.first; i < cut.last; ++i) {
          if (backward_of[i].second == 0) continue;
          cut.back_first = std::min(cut.back_first, backward_of[i].first);
          cut.back_last = std::max(cut.back_last, backward_of[i].second);
        }
      }
      if (part_delays.size() == kKnownParts) part_delays.clear();
      const Nanoseconds ahead = walk_ahead(cut);
      const Nanoseconds back = walk_back(cut, static_cast<int32_t>(s));
      found = part_delays.emplace(part, Delays{ahead, back}).first;
    }
    sum.forward += found->second.forward;
    sum.backward += found->second.backward;
  }
  return sum;
}

StepBound::State::StageTimes StepBound::State::time_stage(size_t s) {
  const Stage& stage = strategy->stages[s];
  use_group(strategy->groups[static_cast<size_t>(stage.group)]);
  open_choices();
  StageTimes times;
  for (size_t i = stage.first; i < stage.last; ++i) {
    chosen[i] = &choice(i, known_ids[static_cast<size_t>(strategy->ops[i])]);
    times.ahead += chosen[i]->forward;
    times.back += chosen[i]->backward;
    time_weights(i, times);
  }
  const Delays waited = delays_of_stage(s);
  times.ahead += waited.forward;
  // What is computed again fills some of the time.
  if (keeps_all) times.back += waited.backward;
  return times;
}

// Whether the first op of a stage needs the last one of the stage before, so that no micro-batch is
// in both at once.
bool StepBound::State::follows(size_t s) const {
  const Graph& graph = training.graph;
  const auto works = [&](size_t op) { return !op_info(graph.ops[op].kind).view; };
  size_t first = strategy->stages[s].first, last = strategy->stages[s - 1].last;
  while (first < static_cast<size_t>(strategy->stages[s].last) && !works(first)) ++first;
  while (last > static_cast<size_t>(strategy->stages[s - 1].first) && !works(last - 1)) --last;
  if (first == static_cast<size_t>(strategy->stages[s].last) ||
      last == static_cast<size_t>(strategy->stages[s - 1].first))
    return false;
  // Between them there are only views.
  std::vector<size_t> pending = {first};
  while (!pending.empty()) {
    const Op& op = graph.ops[pending.back()];
    pending.pop_back();
    for (TensorId id : op.inputs) {
      if (!id.valid() || !graph[id].producer.valid()) continue;
      const size_t producer = graph[id].producer.index();
      if (producer + 1 == last) return true;
      if (producer >= last) pending.push_back(producer);
    }
  }
  return false;
}

Nanoseconds StepBound::State::several_groups() {
  const size_t count = strategy->stages.size();
  chosen.assign(training.forward_ops, &nothing);
  chosen_group = -1;
  stage_times.clear();
  std::vector<int32_t> stages_of_group(strategy->groups.size(), 0);
  for (size_t s = 0; s < count; ++s) {
    stage_times.push_back(time_stage(s));
    ++stages_of_group[static_cast<size_t>(strategy->stages[s].group)];
  }
  if (recomputes)
    for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i)
      for (OpId op : again.before[i]) {
        const auto s = static_cast<size_t>(stage_of[i]);
        use_group(strategy->groups[static_cast<size_t>(strategy->stages[s].group)]);
        open_choices();
        stage_times[s].back +=
            choice(op.index(), known_ids[static_cast<size_t>(strategy->ops[op.index()])]).forward;
      }
  double best = 0;
  Nanoseconds fill = 0, drain = 0;
  std::vector<double> busy(strategy->groups.size(), 0), update(strategy->groups.size(), 0);
  for (size_t s = 0; s < count; ++s) {
    const auto g = static_cast<size_t>(strategy->stages[s].group);
    const StageTimes& own = stage_times[s];
    const bool chained = s > 0 && follows(s);
    fill = chained ? fill + stage_times[s - 1].ahead : 0;
    drain = chained ? drain + stage_times[s - 1].back : 0;
    busy[g] += static_cast<double>((own.ahead + own.back) * strategy->micro_batches);
    update[g] += own.update;
    best = std::max(best, busy[g] + update[g]);
    if (stages_of_group[g] > 1) continue;
    const double end = static_cast<double>(fill) + busy[g];
    // Sums are made when the last micro-batch goes back.
    best = std::max({best, end + static_cast<double>(drain), end + own.update,
                     end - static_cast<double>(own.back) + own.reduction});
  }
  return static_cast<Nanoseconds>(best);
}

}  // namespace windlass
