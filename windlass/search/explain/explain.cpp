#include "windlass/search/explain/explain.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/exact/sharding/sharding_options.h"
#include "windlass/task/lower.h"

namespace windlass {

// Lowers, prices and simulates strategies for one training graph.
class Explainer::Runner {
 public:
  Runner(const Problem& problem, const TrainingGraph& training)
      : problem_(problem),
        training_(training),
        lowering_(training, problem.machine),
        pricer_(problem.machine, problem.cost) {}

  // Throws Error{Input} if the strategy is not one for the graph and the machine.
  Outcome run(const Strategy& strategy) {
    const TaskGraph& tasks = lowering_.lower(strategy);
    TaskTimes times = pricer_.price(tasks);
    if (problem_.reprice) problem_.reprice(training_, tasks, times);
    const SimResult* result = &simulator_.run(tasks, times);
    ensure(result->status != SimStatus::Deadlock, "tasks of the step wait for each other");
    Outcome outcome = {.fits = result->status == SimStatus::Done};
    if (!outcome.fits) {
      outcome.obstacle = tasks[result->failed_memory].name;
      result = &simulator_.run(tasks, times, {.enforce_limits = false});
    }
    Seconds overhead;
    for (const Team& team : tasks.teams)
      overhead =
          std::max(overhead, problem_.cost.step_overhead(problem_.machine.device_types[team.type]));
    outcome.step_time = Seconds(static_cast<double>(result->makespan) * 1e-9) + overhead;
    for (size_t m = 0; m < tasks.memories.size(); ++m) {
      Bytes& peak = tasks.memories[m].team.valid() ? outcome.peak : outcome.host_peak;
      peak = std::max(peak, Bytes(result->peaks[m].bytes));
    }
    return outcome;
  }

 private:
  const Problem& problem_;
  const TrainingGraph& training_;
  Lowering lowering_;
  TaskPricer pricer_;
  Simulator simulator_;
};

Explainer::Explainer(const Problem& problem, const TrainingGraph& training,
                     const Strategy& strategy)
    : problem_(problem),
      training_(training),
      strategy_(strategy),
      runner_(std::make_unique<Runner>(problem, training)),
      plan_(runner_->run(strategy)) {}

Explainer::~Explainer() = default;

Alternative Explainer::measured(std::string decision, std::string choice,
                                const Strategy& strategy) {
  Alternative made = {.decision = std::move(decision), .choice = std::move(choice)};
  try {
    made.one = runner_->run(strategy);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    made.impossible = error.message();
  }
  return made;
}

Alternative Explainer::measured(std::string decision, std::string choice,
                                const TrainingGraph& training, const Strategy& strategy) {
  Alternative made = {.decision = std::move(decision), .choice = std::move(choice)};
  try {
    made.one = Runner(problem_, training).run(strategy);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    made.impossible = error.message();
  }
  return made;
}

void Explainer::add_unless_same(std::vector<Alternative>& list, Alternative alternative) const {
  if (const auto& one = alternative.one;
      one && one->fits == plan_.fits && one->step_time == plan_.step_time &&
      one->peak == plan_.peak && one->host_peak == plan_.host_peak)
    return;
  list.push_back(std::move(alternative));
}

namespace {

Sharding without_ones(Sharding sharding) {
  std::erase_if(sharding.splits, [](const Split& split) { return split.parts == 1; });
  return sharding;
}

// Those that fit first; then by time, then by peak.
bool better(const Alternative& a, const Alternative& b) {
  if (a.one.has_value() != b.one.has_value()) return a.one.has_value();
  if (!a.one) return false;
  if (a.one->fits != b.one->fits) return a.one->fits;
  if (a.one->step_time != b.one->step_time) return a.one->step_time < b.one->step_time;
  return a.one->peak < b.one->peak;
}

}  // namespace

std::vector<size_t> Explainer::ops_alike(OpId id) const {
  const Graph& graph = training_.graph;
  const std::vector<int32_t> stages = stage_of_ops(strategy_, training_.forward_ops);
  const auto group_size = [&](size_t op) {
    const Stage& stage = strategy_.stages[static_cast<size_t>(stages[op])];
    return strategy_.groups[static_cast<size_t>(stage.group)].size();
  };
  const auto sizes = [&](size_t op) {
    std::vector<int64_t> list;
    for (const LoopDim& loop : loops_of(graph, graph.ops[op]).loops) list.push_back(loop.size);
    return list;
  };
  const auto split = [&](size_t op) {
    return without_ones(strategy_.shardings[static_cast<size_t>(strategy_.ops[op])]);
  };
  std::vector<size_t> alike;
  for (size_t i = 0; i < training_.forward_ops; ++i)
    if (graph.ops[i].kind == graph[id].kind && group_size(i) == group_size(id.index()) &&
        split(i) == split(id.index()) && sizes(i) == sizes(id.index()))
      alike.push_back(i);
  return alike;
}

std::vector<Alternative> Explainer::shardings(OpId op, size_t together) {
  const LoopNest nest = loops_of(training_.graph, training_.graph[op]);
  const std::vector<int32_t> hints =
      block_hints(training_.graph, training_.forward_ops)[op.index()];
  const int32_t stage = stage_of_ops(strategy_, training_.forward_ops)[op.index()];
  const auto group = static_cast<size_t>(strategy_.stages[static_cast<size_t>(stage)].group);
  const Sharding now =
      without_ones(strategy_.shardings[static_cast<size_t>(strategy_.ops[op.index()])]);
  struct Choice {
    Sharding sharding;
    Alternative alternative;
  };
  const auto with = [&](const Sharding& sharding, const std::vector<size_t>& ops) {
    Strategy changed = strategy_;
    changed.shardings.push_back(sharding);
    for (size_t i : ops) changed.ops[i] = static_cast<int32_t>(changed.shardings.size() - 1);
    return changed;
  };
  std::vector<Choice> choices;
  const auto devices = static_cast<int64_t>(strategy_.groups[group].size());
  for (const Sharding& sharding : shardings_of(nest, hints, devices)) {
    if (without_ones(sharding) == now) continue;
    choices.push_back({sharding, measured("sharding", format_sharding(sharding, nest),
                                          with(sharding, {op.index()}))});
  }
  std::ranges::stable_sort(choices, better, &Choice::alternative);
  const std::vector<size_t> alike = ops_alike(op);
  std::vector<Alternative> list;
  for (size_t i = 0; i < choices.size(); ++i) {
    list.push_back(std::move(choices[i].alternative));
    if (i < together && alike.size() > 1)
      list.back().all = measured("", "", with(choices[i].sharding, alike)).one;
  }
  return list;
}

std::vector<size_t> Explainer::saved_alike(size_t saved) const {
  const auto kind = [&](const SavedTensor& tensor) {
    return tensor.producer.valid() ? static_cast<int>(training_.graph[tensor.producer].kind) : -1;
  };
  const SavedTensor& like = training_.saved[saved];
  std::vector<size_t> alike;
  for (size_t s = 0; s < training_.saved.size(); ++s) {
    const SavedTensor& other = training_.saved[s];
    if (strategy_.saved[s] == strategy_.saved[saved] && other.bytes == like.bytes &&
        kind(other) == kind(like) &&
        training_.graph[other.tensor].role == training_.graph[like.tensor].role)
      alike.push_back(s);
  }
  return alike;
}

std::vector<Alternative> Explainer::actions(size_t saved) {
  if (!training_.saved[saved].producer.valid()) return {};
  const std::vector<size_t> alike = saved_alike(saved);
  const auto with = [&](MemoryAction action, const std::vector<size_t>& tensors) {
    Strategy changed = strategy_;
    for (size_t s : tensors) changed.saved[s] = action;
    return changed;
  };
  std::vector<Alternative> list;
  for (const MemoryAction action :
       {MemoryAction::Keep, MemoryAction::Regather, MemoryAction::Recompute, MemoryAction::Offload,
        MemoryAction::Compress8, MemoryAction::Compress4, MemoryAction::Compress2}) {
    if (action == strategy_.saved[saved]) continue;
    Alternative made =
        measured("saved tensor", std::string(action_name(action)), with(action, {saved}));
    if (alike.size() > 1 && made.one) made.all = measured("", "", with(action, alike)).one;
    made.same_result = compressed_bits(action) == 0;
    list.push_back(std::move(made));
  }
  return list;
}

std::vector<size_t> Explainer::weights_alike(size_t update) const {
  const size_t first = training_.forward_ops + training_.backward_ops;
  const auto type = [&](size_t u) {
    return training_.graph[training_.graph.ops[first + u].inputs[0]].type;
  };
  std::vector<size_t> alike;
  for (size_t u = 0; u < strategy_.weights.size(); ++u)
    if (strategy_.weights[u] == strategy_.weights[update] && type(u) == type(update))
      alike.push_back(u);
  return alike;
}

std::vector<Alternative> Explainer::homes(size_t update) {
  const std::vector<size_t> alike = weights_alike(update);
  const Residency now = strategy_.weights[update];
  std::vector<Alternative> list;
  const auto add = [&](const std::string& choice, const Residency& home) {
    if (home == now) return;
    const auto with = [&](const std::vector<size_t>& updates) {
      Strategy changed = strategy_;
      for (size_t u : updates) changed.weights[u] = home;
      return changed;
    };
    Alternative made = measured("weight", choice, with({update}));
    if (alike.size() > 1 && made.one) made.all = measured("", "", with(alike)).one;
    add_unless_same(list, std::move(made));
  };
  for (const int zero : {0, 1, 2, 3}) {
    Residency home = now;
    home.zero = static_cast<uint8_t>(zero);
    add(fmt::format("ZeRO stage {}", zero), home);
  }
  Residency home = now;
  home.host = !now.host;
  add(now.host ? "stays on the device" : "rests in host memory", home);
  home = now;
  home.host_update = !now.host_update;
  add(now.host_update ? "updated on the device" : "updated on the host", home);
  home = now;
  home.host = home.host_update = !now.host;
  add(now.host ? "stays and is updated on the device" : "rests and is updated on the host", home);
  return list;
}

}  // namespace windlass
