#include "windlass/plan/packs/check_packs.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/plan/packs/pack_checker.h"

namespace windlass {

bool SampleSet::add(int64_t begin, int64_t end) {
  const auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->first < end) return false;
  if (next == ranges_.begin()) {
    ranges_[begin] = end;
    return true;
  }
  const auto before = std::prev(next);
  if (before->second > begin) return false;
  if (before->second == begin)
    before->second = end;
  else
    ranges_[begin] = end;
  return true;
}

bool SampleSet::covers(int64_t begin, int64_t end) const {
  for (const auto& [from, to] : ranges_)
    if (from <= begin && begin < to) begin = to;
  return begin >= end;
}

PackChecker::PackChecker(const LayerProfile& profile, const Machine& machine,
                         const PackStrategy& strategy, int64_t minibatch, const PackSteps& steps)
    : profile_(profile),
      machine_(machine),
      strategy_(strategy),
      steps_(steps),
      graph_(*steps.graph),
      samples_((minibatch + strategy.replicas - 1) / strategy.replicas),
      layers_(static_cast<int32_t>(profile.layers())) {}

std::vector<std::string> PackChecker::run() {
  if (check_shape()) {
    clock_.emplace(graph_);
    start_step();
    for (size_t i = 0; i < graph_.size() && findings_.size() < kMost; ++i) {
      if (i == steps_.begin[step_ + 1]) {
        end_step();
        start_step();
        ++step_;
      }
      const TaskId id(i);
      clock_->enter(id);
      for (const Use& use : graph_.uses_of(id)) touch(id, use.buffer, use.write);
      visit(id);
      clock_->leave(id);
    }
    if (findings_.size() < kMost) end_step();
  }
  if (more_) findings_.push_back("and more");
  return std::move(findings_);
}

bool PackChecker::check_shape() {
  try {
    check_task_graph(graph_);
  } catch (const Error& error) {
    complain("{}", error.message());
    return false;
  }
  if (steps_.tasks.size() != graph_.size() || steps_.buffers.size() != graph_.buffers.size() ||
      steps_.times->duration.size() != graph_.size() ||
      steps_.times->workspace.size() != graph_.size() || steps_.begin.size() < 2 ||
      steps_.begin.front() != 0 || steps_.begin.back() != graph_.size() ||
      !std::ranges::is_sorted(steps_.begin)) {
    complain("tasks, labels and steps do not go together");
    return false;
  }
  if (graph_.teams.size() != static_cast<size_t>(strategy_.depth)) {
    complain("{} teams, expected {}", graph_.teams.size(), strategy_.depth);
    return false;
  }
  for (size_t t = 0; t < graph_.teams.size(); ++t) {
    std::vector<DeviceId> members;
    for (int32_t r = 0; r < strategy_.replicas; ++r)
      members.push_back(DeviceId(static_cast<size_t>(r * strategy_.depth) + t));
    if (graph_.teams[t].devices != members) complain("team {} has other devices", t);
    Bytes least = machine_[members.front()].limit;
    for (DeviceId device : members) least = std::min(least, machine_[device].limit);
    if (graph_[graph_.teams[t].memory].limit != least)
      complain("team {}: a limit of {} bytes, the least of its devices has {}", t,
               graph_[graph_.teams[t].memory].limit.value, least.value);
  }
  state_.resize(static_cast<size_t>(layers_));
  std::array<bool, 3> resting{};
  for (size_t b = 0; b < graph_.buffers.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    const PackLabel& what = steps_.buffers[b];
    const bool samples = what.what >= PackData::Input;
    const bool rests = buffer.at_start && buffer.at_end && on_host(BufferId(b)) &&
                       what.what <= PackData::Optimizer && what.layers == Pack{0, layers_ - 1};
    if (!check_label(what, rests) || (samples && what.begin >= what.end)) {
      complain("buffer {}: {}, samples {} to {}, part {} of {}", b, name(what), what.begin,
               what.end, what.part, what.parts);
      return false;
    }
    check_size(BufferId(b));
    if (rests)
      resting[static_cast<size_t>(what.what)] = true;
    else if (buffer.at_start || buffer.at_end)
      complain("buffer {} ({}) outlives the step", b, name(what));
  }
  if (!resting[0] || !resting[1] || !resting[2])
    complain("weights, gradients and optimizer state have no place on the host");
  for (size_t i = 0; i < graph_.size(); ++i) {
    const PackLabel& what = steps_.tasks[i];
    if (!check_label(what, false)) {
      complain("task {}: {}, samples {} to {}, part {} of {}", i, name(what), what.begin, what.end,
               what.part, what.parts);
      return false;
    }
    for (TaskId before : graph_.predecessors_of(TaskId(i)))
      if (before.index() >= i) complain("task {} waits for task {}, a later one", i, before.value);
  }
  held_.resize(graph_.buffers.size());
  for (size_t i = 0; i < graph_.size(); ++i)
    for (const Use& use : graph_.uses_of(TaskId(i)))
      if (moves(graph_.tasks[i].kind)) {
        if (!held_[use.buffer.index()].last_use.valid())
          held_[use.buffer.index()].last_use = TaskId(i);
      } else {
        held_[use.buffer.index()].last_use = TaskId(i);
      }
  std::vector<std::vector<BufferId>> none;
  for (Layer& layer : state_) {
    if (layer.parts.empty()) layer.parts.resize(1);
    none.emplace_back(layer.parts.size());
  }
  weights_at_.assign(graph_.memories.size(), none);
  gradients_at_ = weights_at_;
  return findings_.empty();
}

// Whether it names something. Weights of a layer are in as many parts everywhere.
bool PackChecker::check_label(const PackLabel& what, bool resting) {
  if (what.layers.first < 0 || what.layers.last >= layers_ ||
      what.layers.first > what.layers.last || what.begin < 0 || what.end > samples_ ||
      what.begin > what.end || what.parts < 1 || what.part < 0 || what.part >= what.parts)
    return false;
  if (what.what >= PackData::Input) return what.parts == 1;
  if (what.begin != 0 || what.end != 0) return false;
  if (what.parts > 1 && what.layers.first != what.layers.last) return false;
  if (resting) return what.parts == 1;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    std::vector<Stored>& parts = state_[static_cast<size_t>(l)].parts;
    if (parts.empty()) parts.resize(static_cast<size_t>(what.parts));
    if (parts.size() != static_cast<size_t>(what.parts)) return false;
  }
  return true;
}

int64_t PackChecker::sum(const std::vector<int64_t>& bytes, const PackLabel& what) const {
  const int64_t all = sum(bytes, what.layers);
  return all * (what.part + 1) / what.parts - all * what.part / what.parts;
}

int64_t PackChecker::sum(const std::vector<int64_t>& bytes, Pack layers) const {
  int64_t total = 0;
  for (int32_t l = layers.first; l <= layers.last; ++l) total += bytes[static_cast<size_t>(l)];
  return total;
}

const PackChecker::Pass& PackChecker::pass(bool forward, int64_t size) {
  const auto [entry, fresh] = passes_.try_emplace({forward, size});
  if (!fresh) return entry->second;
  const PassCosts costs = forward ? profile_.forward.at(size) : profile_.backward.at(size);
  entry->second.seconds = costs.seconds;
  for (size_t l = 0; l < profile_.layers(); ++l)
    entry->second.working.push_back(
        std::max<int64_t>(0, costs.peak[l] - profile_.buffers[l] - profile_.input[l] * size -
                                 (forward ? profile_.weights[l] : 2 * profile_.weights[l])));
  return entry->second;
}

void PackChecker::check_size(BufferId id) {
  const PackLabel& what = label(id);
  const int64_t samples = what.end - what.begin;
  const int64_t tied = graph_[id].at_start ? profile_.tied : 0;  // the host has them once
  int64_t bytes = 0;
  switch (what.what) {
    case PackData::Weights: bytes = state_bytes(what) - tied; break;
    case PackData::Shares: bytes = share_of(state_bytes(what)); break;
    case PackData::Gradients: bytes = sum(profile_.weights, what) - tied; break;
    case PackData::Optimizer:
      bytes = sum(profile_.optimizer, what);
      if (!on_host(id)) bytes = share_of(bytes);
      break;
    case PackData::Input:
    case PackData::Backward:
      bytes = profile_.input[static_cast<size_t>(what.layers.first)] * samples;
      break;
    case PackData::Saved: bytes = sum(pass(false, samples).working, what.layers); break;
  }
  if (on_host(id) && what.what >= PackData::Input) bytes *= strategy_.replicas;
  if (graph_[id].bytes.value != bytes)
    complain("buffer {} ({}): {} bytes, expected {}", id.value, name(what), graph_[id].bytes.value,
             bytes);
}

void PackChecker::start_step() {
  for (Layer& layer : state_) {
    layer.forward = layer.recompute = layer.backward = {};
    for (Stored& part : layer.parts) {
      part.updates = 0;
      part.gradient_there = part.old_state = false;
    }
  }
}

void PackChecker::end_step() {
  for (int32_t l = 0; l < layers_; ++l) {
    const Layer& layer = state_[static_cast<size_t>(l)];
    if (!layer.forward.covers(0, samples_))
      complain("layer {}: the forward pass leaves samples out", l);
    if (!layer.backward.covers(0, samples_))
      complain("layer {}: the backward pass leaves samples out", l);
    const int expected = profile_.weights[static_cast<size_t>(l)] > 0 ? 1 : 0;
    for (const Stored& part : layer.parts) {
      if (part.updates < expected) complain("layer {} is not updated", l);
      if (part.old_state) complain("layer {}: its new optimizer state is lost", l);
    }
  }
}

void PackChecker::order(TaskId id, Users& users, bool write, const std::string& what) {
  const auto after = [&](TaskId other, const char* does) {
    if (other.valid() && other != id && !clock_->before(other))
      complain("{} {} {} without waiting for {}", name(id), does, what, name(other));
  };
  after(users.writer, write ? "writes" : "reads");
  if (write) {
    for (TaskId reader : users.readers) after(reader, "overwrites");
    users.writer = id;
    users.readers.clear();
  } else if (users.readers.empty() || users.readers.back() != id) {
    users.readers.push_back(id);
  }
}

void PackChecker::touch(TaskId id, BufferId buffer, bool write) {
  Held& held = held_[buffer.index()];
  order(id, held.users, write, fmt::format("buffer {} ({})", buffer.value, name(label(buffer))));
  if (!write && !held.there)
    complain("{} reads buffer {} ({}), which nobody has written", name(id), buffer.value,
             name(label(buffer)));
}

void PackChecker::visit(TaskId id) {
  switch (graph_[id].kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute:
    case TaskKind::Backward: return compute(id);
    case TaskKind::SwapIn: return swap_in(id);
    case TaskKind::SwapOut: return swap_out(id);
    case TaskKind::Send: return send(id);
    case TaskKind::Gather: return gather(id);
    case TaskKind::Reduce: return reduce(id);
    case TaskKind::Update: return update(id);
    case TaskKind::HostUpdate: return host_update(id);
    default: complain("{}: packs of layers have no such tasks", name(id));
  }
}

std::string PackChecker::name(const PackLabel& label) const {
  constexpr std::array kNames = {"weights",  "gradients", "optimizer state", "shares", "input",
                                 "gradient", "saved"};
  std::string text = kNames[static_cast<size_t>(label.what)];
  text += " of " + layers_text(label.layers);
  if (label.end > label.begin) text += fmt::format(", samples {}-{}", label.begin, label.end - 1);
  return text;
}

std::string PackChecker::name(TaskId id) const {
  return fmt::format("task {} {} ({}) on {}", id.value, task_kind_name(graph_[id].kind),
                     name(label(id)), graph_.memories[static_cast<size_t>(team_of(id))].name);
}

std::vector<std::string> check_pack_tasks(const LayerProfile& profile, const Machine& machine,
                                          const PackStrategy& strategy, int64_t minibatch,
                                          const PackSteps& steps) {
  try {
    check_pack_strategy(profile, strategy, minibatch, static_cast<int64_t>(machine.devices.size()));
  } catch (const Error& error) {
    return {error.message()};
  }
  return PackChecker(profile, machine, strategy, minibatch, steps).run();
}

}  // namespace windlass
