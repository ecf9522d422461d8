// What a strategy for packs of layers takes, by the simulator.
#pragma once

#include <optional>

#include "windlass/plan/packs/pack_results.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

// Whole steps, for reports: three in a row if they overlap, one otherwise.
struct PackRun {
  const PackSteps* steps = nullptr;
  const SimResult* simulation = nullptr;
};

// Prices strategy after strategy.
class StreamPricer {
 public:
  // All must outlive it.
  StreamPricer(ChainTables& chain, const Machine& machine, int64_t minibatch, int64_t limit)
      : minibatch_(minibatch), limit_(limit), lowering_(chain, machine) {}

  // By two steps at most. Where that is not enough to come round, seconds are from late in the
  // first to late in the second: nearly right, for most.
  StreamCost price(const PackStrategy& strategy) { return price(strategy, 2); }
  // By more of them if it takes that: right, but for the few that do not come round for long.
  StreamCost price_long_run(const PackStrategy& strategy);
  // Bytes of what was priced last: by team, and of the host.
  std::vector<int64_t> peaks() const;
  // Nothing if state_bytes cannot hold a pack. Valid until the next call of any.
  std::optional<PackRun> run(const PackStrategy& strategy);

  int64_t tasks() const { return tasks_; }  // simulated so far
  int64_t runs() const { return runs_; }

 private:
  StreamCost price(const PackStrategy& strategy, int32_t steps);

  int64_t minibatch_, limit_;
  PackLowering lowering_;
  Simulator simulator_;
  const SimResult* priced_ = nullptr;
  int64_t tasks_ = 0, runs_ = 0;
};

}  // namespace windlass
