#include "windlass/strategy/replicas.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "windlass/base/error.h"

namespace windlass {
namespace {

FlopsPerSecond peak_for(const DeviceType& device, DType dtype) {
  const Precision precision = dtype == DType::BF16  ? Precision::Bf16
                              : dtype == DType::F16 ? Precision::Fp16
                                                    : Precision::Fp32;
  const auto found = device.peak.find(precision);
  return found != device.peak.end() ? found->second : device.peak.at(Precision::Fp32);
}

double forward_seconds(const TrainingGraph& training, const DeviceType& device) {
  const Graph& graph = training.graph;
  double seconds = 0;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = graph.ops[i];
    if (op_info(op.kind).view) continue;
    Bytes bytes;
    for (const auto* list : {&op.inputs, &op.outputs, &op.auxiliaries})
      for (TensorId id : *list)
        if (id.valid()) bytes += byte_size(graph[id].type);
    const DType dtype = op.outputs.empty() ? DType::F32 : graph[op.outputs[0]].type.dtype;
    const Seconds computing =
        Flops(2 * arithmetic_of(graph, op).multiply_adds) / peak_for(device, dtype);
    seconds += std::max(computing.value, (bytes / device.memory_bandwidth).value);
  }
  return seconds;
}

}  // namespace

std::vector<int32_t> samples_by_speed(int64_t samples, const std::vector<double>& speeds) {
  ensure(static_cast<int64_t>(speeds.size()) <= samples, "more replicas than samples");
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  // One each beforehand, the rest in proportion to what is still due.
  std::vector<double> due;
  for (double speed : speeds)
    due.push_back(std::max(0.0, static_cast<double>(samples) * speed / all - 1));
  const double open = std::accumulate(due.begin(), due.end(), 0.0);
  int64_t left = samples - static_cast<int64_t>(speeds.size());
  const auto rest = static_cast<double>(left);
  std::vector<int32_t> result;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t r = 0; r < due.size(); ++r) {
    const double exact = open > 0 ? rest * due[r] / open : 0;
    result.push_back(1 + static_cast<int32_t>(exact));
    left -= static_cast<int32_t>(exact);
    remainders.emplace_back(std::floor(exact) - exact, r);
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left)
    ++result[remainders[i].second];
  return result;
}

std::vector<double> replica_speeds(const TrainingGraph& training, const Machine& machine,
                                   const std::vector<DeviceId>& group, int64_t replicas) {
  std::map<size_t, double> seconds;  // by type of device
  std::vector<double> speeds;
  const size_t each = group.size() / static_cast<size_t>(replicas);
  for (size_t r = 0; r < static_cast<size_t>(replicas); ++r) {
    double slowest = 0;
    for (size_t m = r * each; m < (r + 1) * each; ++m) {
      const size_t type = machine[group[m]].type;
      const auto [entry, fresh] = seconds.try_emplace(type, 0);
      if (fresh) entry->second = forward_seconds(training, machine.device_types[type]);
      slowest = std::max(slowest, entry->second);
    }
    speeds.push_back(slowest > 0 ? 1 / slowest : 1);
  }
  return speeds;
}

void size_replicas(const TrainingGraph& training, const BatchAxes& batch,
                   const std::vector<std::vector<int32_t>>& samples, Strategy& strategy) {
  const std::vector<int32_t> stages = stage_of_ops(strategy, training.forward_ops);
  std::vector<Sharding> shardings;
  std::map<Sharding, int32_t> known;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    Sharding sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
    const Stage& stage = strategy.stages[static_cast<size_t>(stages[i])];
    const std::vector<int32_t>& wanted = samples[static_cast<size_t>(stage.group)];
    if (!sharding.splits.empty() && batch.loop[i] >= 0) {
      Split& split = sharding.splits.front();
      if (split.loop == batch.loop[i] && split.parts == static_cast<int32_t>(wanted.size()) &&
          split.blocks == 1)
        split.sizes = reduced_sizes(wanted);
    }
    const auto [entry, fresh] = known.try_emplace(sharding, static_cast<int32_t>(shardings.size()));
    if (fresh) shardings.push_back(sharding);
    strategy.ops[i] = entry->second;
  }
  strategy.shardings = std::move(shardings);
}

}  // namespace windlass
