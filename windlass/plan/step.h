// One training step, lowered and simulated, and what it would take if it does not fit.
#pragma once

#include <functional>
#include <optional>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/sim/simulate.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

struct SimulatedStep {
  TaskGraph tasks;
  TaskTimes times;
  SimResult result;  // limits enforced, if asked for
  // What a step takes on the host beside all tasks: CostModel::step_overhead() of the slowest
  // device.
  Seconds overhead;
  // If it ran out of memory: the same step without limits, and the least limit of each device at
  // which it runs (none if a host's memory is too small: no limit of devices helps).
  std::optional<SimResult> unlimited;
  std::optional<Bytes> least_limit;

  // Of a whole step: that without limits if the other one did not end.
  const SimResult& whole() const { return unlimited ? *unlimited : result; }
  Seconds step_time() const {
    return Seconds(static_cast<double>(whole().makespan) * 1e-9) + overhead;
  }
};

// Replaces prices of a lowered step by others, measured ones for example.
using Reprice = std::function<void(const TrainingGraph&, const TaskGraph&, TaskTimes&)>;

// Lowers by the door that the strategy asks for: `training` is of one micro-batch, for packs of
// layers of the whole batch. Throws Error{Input} as lower() does, and Error{Internal} if the tasks
// wait for each other.
SimulatedStep simulate_step(const TrainingGraph& training, const Strategy& strategy,
                            const Machine& machine, const CostModel& cost,
                            const SimOptions& options = {}, const Reprice& reprice = {});

// The least limit, to one MiB, of all device memories at which the step runs: by bisection, each
// probe a simulation. A lower limit makes tasks wait for memory, so this may be less than the peak
// without limits. None if it does not run at that peak either. Complexity: 20 simulations at most.
std::optional<Bytes> find_least_limit(const TaskGraph& graph, const TaskTimes& times,
                                      const SimResult& unlimited);

}  // namespace windlass
