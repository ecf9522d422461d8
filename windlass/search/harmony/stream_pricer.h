// What a strategy for packs of layers takes, by the simulator.
#pragma once

#include "windlass/search/harmony/pack_tasks.h"

namespace windlass {

// What the simulator says of a strategy, in the long run: the time from the end of one step to the
// end of the next.
struct StreamCost {
  bool fits = false;  // into the device's limit; the host is looked at by the caller
  double seconds = 0;
  int64_t peak_bytes = 0;  // of the fullest device
  int64_t host_bytes = 0;
  SwapVolume volume;
};

// Prices strategy after strategy.
class StreamPricer {
 public:
  // All must outlive it.
  StreamPricer(ChainTables& chain, const Machine& machine, int64_t minibatch, int64_t limit)
      : minibatch_(minibatch), limit_(limit), lowering_(chain, machine) {}

  StreamCost price(const PackStrategy& strategy);
  // The same, keeping the graph, without labels, and the simulation for reports until the next
  // call.
  const PackSteps* steps() const { return steps_; }
  const SimResult* simulation() const { return simulation_; }

  int64_t tasks() const { return tasks_; }  // simulated so far
  int64_t runs() const { return runs_; }

 private:
  int64_t minibatch_, limit_;
  PackLowering lowering_;
  Simulator simulator_;
  const PackSteps* steps_ = nullptr;
  const SimResult* simulation_ = nullptr;
  int64_t tasks_ = 0, runs_ = 0;
};

}  // namespace windlass
