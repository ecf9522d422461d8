// A bound on every step there is: each device works all the time, on pieces that suit it best.

#include <algorithm>
#include <cmath>

#include "windlass/search/search.h"

namespace windlass {
namespace {

// Arithmetic at the highest rate that the device has for anything.
double arithmetic_seconds(const TrainingGraph& training, const Machine& machine) {
  double rate = 0;
  for (const Device& device : machine.devices) {
    double fastest = 0;
    for (const auto& [precision, peak] : machine.device_types[device.type].peak)
      fastest = std::max(fastest, peak.value);
    rate += fastest;
  }
  const TrainingTotals totals = totals_of(training);
  return (totals.forward.flops() + totals.backward.flops()).value / rate;
}

// Time of all devices together, of one kind or another.
double work_seconds(const TrainingGraph& training, const Problem& problem) {
  const Machine& machine = problem.machine;
  std::vector<bool> used(machine.device_types.size(), false);
  for (const Device& device : machine.devices) used[device.type] = true;
  double sum = 0;
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const bool forward = i < training.forward_ops;
    // Sums of gradients may be made where their terms are.
    if (op_info(op.kind).view || (!forward && !op.forward.valid())) continue;
    const LoopNest nest = loops_of(training.graph, forward ? op : training.graph[op.forward]);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    const Work work = work_of(training.graph, op, nest, sizes);
    double least = INFINITY;
    for (size_t type = 0; type < used.size(); ++type)
      if (used[type])
        least = std::min(least, problem.cost.least_time(work, machine.device_types[type]).value);
    sum += least;
  }
  return sum;
}

}  // namespace

Seconds work_bound(const Problem& problem) {
  const TrainingGraph training = differentiate(problem.network, problem.training);
  const Machine& machine = problem.machine;
  // Measured times are not those of the cost model.
  const double bound = problem.reprice ? arithmetic_seconds(training, machine)
                                       : work_seconds(training, problem) /
                                             static_cast<double>(machine.devices.size());
  Seconds overhead = problem.cost.step_overhead(machine.device_types[machine.devices[0].type]);
  for (const Device& device : machine.devices)
    overhead = std::min(overhead, problem.cost.step_overhead(machine.device_types[device.type]));
  return Seconds(bound) + overhead;
}

}  // namespace windlass
