#include "windlass/search/one_device/least_memory.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr size_t kDescents = 3;            // starts that are taken down
constexpr int64_t kMostEvaluations = 400;  // of one descent
constexpr size_t kMostAlive = 16;          // buffers that are looked at, the largest first
constexpr Bytes kSmallBucket{4096};        // every weight moves by itself

// A strategy, and its peak on the device without limits.
struct Placed {
  Strategy strategy;
  int64_t peak = 0;
};

class Descent {
 public:
  Descent(Ledger& ledger, const Strategy& start)
      : evaluator_(*ledger.cut(start.micro_batches).evaluator),
        training_(ledger.cut(start.micro_batches).training),
        machine_(ledger.problem().machine),
        fixed_(ledger.options().fixed),
        ledger_(ledger) {
    for (size_t s = 0; s < training_.saved.size(); ++s) saved_of_[training_.saved[s].tensor] = s;
    const size_t first = training_.forward_ops + training_.backward_ops;
    for (size_t i = first; i < training_.graph.ops.size(); ++i) {
      const Op& op = training_.graph.ops[i];
      update_of_[op.inputs[0]] = update_of_[op.inputs[1]] = i - first;
    }
  }

  std::optional<int64_t> peak(const Strategy& strategy) {
    try {
      check_strategy(training_, machine_, strategy);
      return evaluator_.evaluate_unlimited(strategy).peak;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      return std::nullopt;
    }
  }

  // As far down as single changes lead.
  void run(Placed& best) {
    const int64_t before = evaluator_.evaluations();
    while (evaluator_.evaluations() - before < kMostEvaluations && !ledger_.over())
      if (!step(best)) return;
  }

 private:
  bool step(Placed& best) {
    for (const Strategy& changed : changes(best.strategy))
      if (const auto found = peak(changed); found && *found < best.peak) {
        best = {changed, *found};
        return true;
      }
    return false;
  }

  // One for each other way to treat something that is alive at the peak.
  std::vector<Strategy> changes(const Strategy& strategy) {
    const Evaluator::Run run = evaluator_.run_unlimited(strategy);
    const MemoryId memory = run.tasks.teams.front().memory;
    std::vector<BufferId> alive =
        alive_at(run.tasks, run.result, memory, run.result.peaks[memory.index()].time);
    if (alive.size() > kMostAlive) alive.resize(kMostAlive);
    std::vector<Strategy> list;
    for (BufferId id : alive) {
      const TensorId tensor = run.tasks[id].tensor;
      if (!tensor.valid()) continue;
      if (const auto saved = saved_of_.find(tensor); saved != saved_of_.end())
        treat_saved(strategy, saved->second, list);
      if (const auto update = update_of_.find(tensor); update != update_of_.end())
        treat_weight(strategy, update->second, list);
    }
    return list;
  }

  void treat_saved(const Strategy& strategy, size_t saved, std::vector<Strategy>& list) const {
    if (!training_.saved[saved].producer.valid() || fixed_.recompute) return;
    for (const MemoryAction action :
         {MemoryAction::Recompute, MemoryAction::Offload, MemoryAction::Keep}) {
      if (strategy.saved[saved] == action) continue;
      if (action == MemoryAction::Offload && fixed_.offload && !*fixed_.offload) continue;
      list.push_back(strategy);
      list.back().saved[saved] = action;
    }
  }

  void treat_weight(const Strategy& strategy, size_t update, std::vector<Strategy>& list) const {
    for (const bool host : {true, false})
      for (const bool host_update : {true, false}) {
        const Residency& now = strategy.weights[update];
        if (now.host == host && now.host_update == host_update) continue;
        if (fixed_.host_weights && *fixed_.host_weights != host) continue;
        if (fixed_.host_update && *fixed_.host_update != host_update) continue;
        list.push_back(strategy);
        list.back().weights[update].host = host;
        list.back().weights[update].host_update = host_update;
      }
  }

  Evaluator& evaluator_;
  const TrainingGraph& training_;
  const Machine& machine_;
  const FixedDecisions& fixed_;
  Ledger& ledger_;
  std::map<TensorId, size_t> saved_of_, update_of_;
};

}  // namespace

std::optional<LeastMemory> find_least_memory(Ledger& ledger, std::vector<Strategy> starts) {
  if (starts.empty()) return std::nullopt;
  // The most frugal are the last ones: they are looked at first, in case time is short.
  std::vector<Placed> placed;
  for (size_t i = starts.size(); i-- > 0;) {
    Strategy& start = starts[i];
    if (!placed.empty() && ledger.over()) break;
    start.in_turn = true;
    start.prefetch = 0;
    start.bucket = std::min(start.bucket, kSmallBucket);
    if (const auto peak = Descent(ledger, start).peak(start))
      placed.push_back({std::move(start), *peak});
  }
  std::ranges::reverse(placed);
  std::ranges::stable_sort(placed, {}, &Placed::peak);
  if (placed.size() > kDescents) placed.resize(kDescents);
  for (Placed& start : placed) Descent(ledger, start.strategy).run(start);
  std::ranges::stable_sort(placed, {}, &Placed::peak);
  for (const Placed& best : placed)
    if (const auto limit =
            ledger.cut(best.strategy.micro_batches).evaluator->least_limit(best.strategy))
      return LeastMemory{best.strategy, *limit};
  return std::nullopt;
}

}  // namespace windlass
