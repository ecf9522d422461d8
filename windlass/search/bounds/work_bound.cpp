// A bound on every step there is: each device works all the time, on pieces that suit it best.

#include "windlass/search/bounds/work_bound.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "windlass/graph/op_info.h"
#include "windlass/search/bounds/split_bound.h"

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

// Of all weights. Those of one kind may be updated together, so each kind is one piece of work.
std::vector<Work> all_updates(const TrainingGraph& training) {
  struct Kind {
    OptimizerKind optimizer;
    DType weight, gradient;
    bool master;
    auto operator<=>(const Kind&) const = default;
  };
  std::map<Kind, double> elements;
  for (size_t i = training.forward_ops + training.backward_ops; i < training.graph.ops.size();
       ++i) {
    const Op& op = training.graph.ops[i];
    const TensorType& weight = training.graph[op.inputs[0]].type;
    elements[{std::get<UpdateAttrs>(op.attrs).optimizer, weight.dtype,
              training.graph[op.inputs[1]].type.dtype,
              op.inputs.size() > 2 && op.inputs[2].valid()}] +=
        static_cast<double>(element_count(weight.shape));
  }
  std::vector<Work> works;
  for (const auto& [kind, count] : elements)
    works.push_back(update_work(kind.optimizer, count, kind.weight, kind.gradient, kind.master));
  return works;
}

// Devices of one kind, and what each op and all updates take on one of them.
struct KindWork {
  double devices = 0;
  const std::vector<double>& times;
  double updates = 0;
};

// In a step of T seconds the devices have T seconds each. However ops are shared out over kinds of
// devices, and whatever a second of each kind is worth: all the time there is is worth no less than
// each op where its time is worth least. The hosts are a kind of their own: each device has a queue
// of updates there. A second of it is worth what makes an update cost the same in either place.
double work_seconds(const std::vector<KindWork>& kinds, const std::vector<double>& worth,
                    double host_updates) {
  double all = 0, sum = 0, devices = 0, updates = INFINITY;
  for (size_t k = 0; k < kinds.size(); ++k) {
    all += worth[k] * kinds[k].devices;
    devices += kinds[k].devices;
    updates = std::min(updates, worth[k] * kinds[k].updates);
  }
  for (size_t i = 0; i < kinds[0].times.size(); ++i) {
    double least = INFINITY;
    for (size_t k = 0; k < kinds.size(); ++k) least = std::min(least, worth[k] * kinds[k].times[i]);
    sum += least;
  }
  if (host_updates <= 0) return sum / all;
  return std::max(sum / all, (sum + updates) / (all + devices * updates / host_updates));
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
  updates_.assign(times_.size(), 0);
  if (problem.reprice) return;
  const std::vector<Work> works = all_updates(training);
  for (size_t type = 0; type < times_.size(); ++type)
    for (const Work& work : works)
      updates_[type] += problem.cost.least_time(work, machine_.device_types[type]).value;
  for (const Device& device : machine_.devices) {
    double sum = 0;
    for (const Work& work : works)
      sum += problem.cost.price_on_host(work, machine_[device.node]).time.value;
    host_updates_ = host_updates_ > 0 ? std::min(host_updates_, sum) : sum;
  }
}

Seconds WorkBound::passes(const std::vector<DeviceId>& devices) const {
  return Seconds(least(devices, false));
}

Seconds WorkBound::operator()(const std::vector<DeviceId>& devices) const {
  return Seconds(least(devices, true));
}

double WorkBound::least(const std::vector<DeviceId>& devices, bool updates) const {
  std::vector<double> counts(times_.size(), 0);
  for (DeviceId device : devices) ++counts[machine_[device].type];
  std::vector<KindWork> kinds;
  // All alike, or as fast as they are.
  std::vector<double> speeds;
  for (DeviceId device : devices) {
    double& count = counts[machine_[device].type];
    if (count == 0) continue;
    const size_t type = machine_[device].type;
    kinds.push_back({std::exchange(count, 0), times_[type], updates_[type]});
    const Seconds all = alone(device);
    if (all.value <= 0) return 0;
    speeds.push_back(1 / all.value);
  }
  const double hosts = updates ? host_updates_ : 0;
  return std::max(work_seconds(kinds, std::vector<double>(kinds.size(), 1), hosts),
                  work_seconds(kinds, speeds, hosts));
}

Seconds work_bound(const Problem& problem, const SearchOptions& options) {
  const Machine& machine = problem.machine;
  const TrainingGraph training = differentiate(problem.network, problem.training);
  Seconds overhead = problem.cost.step_overhead(machine.device_types[machine.devices[0].type]);
  for (const Device& device : machine.devices)
    overhead = std::min(overhead, problem.cost.step_overhead(machine.device_types[device.type]));
  const WorkBound work(problem, training);
  Seconds least = work(all_devices(machine));
  if (SplitBound::suits(problem)) {
    const size_t type = machine.devices[0].type;
    SplitBound split(problem, training, work.updates(type).value, work.host_updates().value,
                     options.micro_batches);
    if (std::ranges::all_of(options.starts, [&](const StartStrategy& start) {
          return split.covers(start.strategy);
        }))
      least = std::max(least, Seconds(split()));
  }
  return least + overhead;
}

}  // namespace windlass
