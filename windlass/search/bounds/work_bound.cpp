// A bound on every step there is: each device works all the time, on pieces that suit it best.

#include "windlass/search/bounds/work_bound.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

// Arithmetic at the highest rate that the device has for anything.
std::vector<double> arithmetic_times(const TrainingGraph& training, const DeviceType& type) {
  double fastest = 0;
  for (const auto& [precision, peak] : type.peak) fastest = std::max(fastest, peak.value);
  const TrainingTotals totals = totals_of(training);
  return {(totals.forward.flops() + totals.backward.flops()).value / fastest};
}

// What each op takes if the device had it alone.
std::vector<double> work_times(const TrainingGraph& training, const DeviceType& type,
                               const CostModel& cost) {
  std::vector<double> times;
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const bool forward = i < training.forward_ops;
    // Sums of gradients may be made where their terms are.
    if (op_info(op.kind).view || (!forward && !op.forward.valid())) continue;
    const LoopNest nest = loops_of(training.graph, forward ? op : training.graph[op.forward]);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    times.push_back(cost.least_time(work_of(training.graph, op, nest, sizes), type).value);
  }
  return times;
}

// Devices of one kind, and what each op takes on one of them.
struct KindWork {
  double devices = 0;
  const std::vector<double>& times;
};

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

}  // namespace

WorkBound::WorkBound(const Problem& problem, const TrainingGraph& training)
    : machine_(problem.machine), times_(machine_.device_types.size()) {
  for (const Device& device : machine_.devices) {
    std::vector<double>& times = times_[device.type];
    const DeviceType& type = machine_.device_types[device.type];
    // Measured times are not those of the cost model.
    if (times.empty())
      times = problem.reprice ? arithmetic_times(training, type)
                              : work_times(training, type, problem.cost);
  }
  for (const std::vector<double>& times : times_) {
    double& sum = sums_.emplace_back(0);
    for (double time : times) sum += time;
  }
}

Seconds WorkBound::operator()(const std::vector<DeviceId>& devices) const {
  std::vector<double> counts(times_.size(), 0);
  for (DeviceId device : devices) ++counts[machine_[device].type];
  std::vector<KindWork> kinds;
  // All alike, or as fast as they are.
  std::vector<double> speeds;
  for (DeviceId device : devices) {
    double& count = counts[machine_[device].type];
    if (count == 0) continue;
    kinds.push_back({std::exchange(count, 0), times_[machine_[device].type]});
    const Seconds all = alone(device);
    if (all.value <= 0) return Seconds(0);
    speeds.push_back(1 / all.value);
  }
  return Seconds(std::max(work_seconds(kinds, std::vector<double>(kinds.size(), 1)),
                          work_seconds(kinds, speeds)));
}

Seconds work_bound(const Problem& problem) {
  const Machine& machine = problem.machine;
  const TrainingGraph training = differentiate(problem.network, problem.training);
  Seconds overhead = problem.cost.step_overhead(machine.device_types[machine.devices[0].type]);
  for (const Device& device : machine.devices)
    overhead = std::min(overhead, problem.cost.step_overhead(machine.device_types[device.type]));
  return WorkBound(problem, training)(all_devices(machine)) + overhead;
}

}  // namespace windlass
