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

// What each op takes on each kind of device that is there, if it had it alone.
struct KindWork {
  double devices = 0;
  std::vector<double> times = {};  // by op
};

std::vector<KindWork> work_by_kind(const TrainingGraph& training, const Problem& problem) {
  const Machine& machine = problem.machine;
  std::vector<KindWork> kinds(machine.device_types.size());
  for (const Device& device : machine.devices) ++kinds[device.type].devices;
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const bool forward = i < training.forward_ops;
    // Sums of gradients may be made where their terms are.
    if (op_info(op.kind).view || (!forward && !op.forward.valid())) continue;
    const LoopNest nest = loops_of(training.graph, forward ? op : training.graph[op.forward]);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    const Work work = work_of(training.graph, op, nest, sizes);
    for (size_t k = 0; k < kinds.size(); ++k)
      if (kinds[k].devices > 0)
        kinds[k].times.push_back(problem.cost.least_time(work, machine.device_types[k]).value);
  }
  std::erase_if(kinds, [](const KindWork& kind) { return kind.devices == 0; });
  return kinds;
}

// In a step of T seconds the devices have T seconds each. However ops are shared out over kinds of
// devices, and whatever a second of each kind is worth: all the time there is is worth no less than
// each op where its time is worth least.
double work_seconds(const std::vector<KindWork>& kinds, const std::vector<double>& worth) {
  double all = 0, sum = 0;
  for (size_t k = 0; k < kinds.size(); ++k) all += worth[k] * kinds[k].devices;
  for (size_t i = 0; i < kinds[0].times.size(); ++i) {
    double least = INFINITY;
    for (size_t k = 0; k < kinds.size(); ++k) least = std::min(least, worth[k] * kinds[k].times[i]);
    sum += least;
  }
  return sum / all;
}

double work_seconds(const TrainingGraph& training, const Problem& problem) {
  const std::vector<KindWork> kinds = work_by_kind(training, problem);
  // All alike, or as fast as they are.
  std::vector<double> speeds;
  for (const KindWork& kind : kinds) {
    double sum = 0;
    for (double time : kind.times) sum += time;
    if (sum <= 0) return 0;
    speeds.push_back(1 / sum);
  }
  return std::max(work_seconds(kinds, std::vector<double>(kinds.size(), 1)),
                  work_seconds(kinds, speeds));
}

}  // namespace

Seconds work_bound(const Problem& problem) {
  const TrainingGraph training = differentiate(problem.network, problem.training);
  const Machine& machine = problem.machine;
  // Measured times are not those of the cost model.
  const double bound =
      problem.reprice ? arithmetic_seconds(training, machine) : work_seconds(training, problem);
  Seconds overhead = problem.cost.step_overhead(machine.device_types[machine.devices[0].type]);
  for (const Device& device : machine.devices)
    overhead = std::min(overhead, problem.cost.step_overhead(machine.device_types[device.type]));
  return Seconds(bound) + overhead;
}

}  // namespace windlass
