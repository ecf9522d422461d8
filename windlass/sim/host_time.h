// The host of a framework, which hands ops to devices one after the other.
//
// It runs ahead: a device that is busy does not feel it. A device that is idle waits until the host
// has issued the next op, so that no step is faster than the host can issue it. On each device
//   issued(i) = issued(i - 1) + host(i)
//   done(i)   = max(issued(i), done(i - 1)) + device(i)
// and op i takes done(i) - done(i - 1). Both start at 0 where the host waits for the device: with
// the step, or, in a pipeline whose runner does so, with each pass of a micro-batch. While devices
// redistribute activations the host goes on issuing; what a device waits for beside (gradients,
// weights, other stages) does not let it catch up here: a bound from above.
#pragma once

#include "windlass/cost/cost_model.h"
#include "windlass/task/task_graph.h"
#include "windlass/task/task_times.h"

namespace windlass {

// Adds to durations what devices wait for the host, and to workspaces the copies that the runner
// makes. `times` are those of the devices alone.
void add_runner_costs(const TaskGraph& graph, const Machine& machine, const RunnerCosts& costs,
                      TaskTimes& times);

}  // namespace windlass
