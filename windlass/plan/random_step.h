// Random steps that the slow executor can carry out, for tests.
#pragma once

#include <optional>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::cases {

constexpr double kLeftOut = -100;

// Weights, state and data of a training graph. Of the labels of even micro-batches many are left
// out, of the second one all; the first of all counts.
inline StepStart random_start(const TrainingGraph& training, int32_t micro_batches, uint64_t seed) {
  const Graph& graph = training.graph;
  StepStart start;
  start.micro_batches = micro_batches;
  if (training.unequal) start.batch = training.unequal->batch;
  start.values.resize(graph.tensors.size());
  Rng rng(seed);
  const auto random_array = [](const TensorType& type, Rng& from, double low, double high) {
    Array array(type.shape);
    for (double& value : array.values) value = from.uniform(low, high);
    return array;
  };
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const bool positive = tensor.role == TensorRole::State || tensor.role == TensorRole::Buffer;
    if (tensor.role == TensorRole::Weight || tensor.role == TensorRole::Master || positive)
      start.values[t] = random_array(tensor.type, rng, positive ? 0.1 : -0.5, positive ? 1 : 0.5);
  }
  start.data = [&training, &graph, random_array, seed](TensorId id, int32_t micro_batch) {
    Rng own(seed + 1 + id.index(), static_cast<uint64_t>(micro_batch));
    const TensorType& type = training.of(micro_batch).graph[id].type;
    if (is_float(type.dtype)) return random_array(type, own, -1, 1);
    Array array(type.shape);
    for (double& value : array.values) value = static_cast<double>(own.integer(0, 15));
    if (graph[id].role != TensorRole::Label) return array;
    const double left_out = micro_batch == 1 ? 1 : micro_batch % 2 == 0 ? 0.6 : 0.1;
    for (size_t i = micro_batch == 0 ? 1 : 0; i < array.values.size(); ++i)
      if (own.chance(left_out)) array.values[i] = kLeftOut;
    return array;
  };
  start.random = [seed](OpId op, int32_t micro_batch) {
    return RandomState{seed, op.index() * 1000 + static_cast<uint64_t>(micro_batch)};
  };
  return start;
}

// The start of the step of a batch from that of its micro-batches: their samples, one behind the
// other. Refers to both graphs, whose tensors are the same but for sizes.
inline StepStart start_of_batch(const TrainingGraph& whole, const StepStart& parts) {
  StepStart start = parts;
  start.micro_batches = 1;
  start.batch = {};
  ensure(start.values.size() == whole.graph.tensors.size(), "other tensors than those of a part");
  start.data = [&whole, data = parts.data, count = parts.micro_batches](TensorId id, int32_t) {
    Array all(whole.graph[id].type.shape);
    all.values.clear();
    for (int32_t m = 0; m < count; ++m)
      std::ranges::copy(data(id, m).values, std::back_inserter(all.values));
    return all;
  };
  return start;
}

// One to three hosts that differ in memory, in how many devices they have and in which.
inline Machine unlike_hosts(Rng& rng) {
  std::string nodes;
  const int64_t hosts = rng.integer(1, 3);
  for (int64_t h = 0; h < hosts; ++h) {
    std::string devices;
    const int64_t count = rng.integer(hosts == 1 ? 2 : 1, 3);
    for (int64_t d = 0; d < count; ++d)
      devices += fmt::format(R"({}{{"type": "{}"}})", d == 0 ? "" : ", ",
                             rng.chance(0.2) ? "slow" : "card");
    nodes += fmt::format(R"({}{{"host": {{"memory": "{}GiB", "memory_bandwidth": "50GB/s",
                                          "peak": "1TFLOPS"}},
          "devices": [{}], "switches": ["root"],
          "links": [{{"from": "gpu*", "to": "root", "bandwidth": "12GB/s", "latency": "5us"}},
                    {{"from": "root", "to": "host", "bandwidth": "20GB/s", "latency": "1us"}}]}})",
                         h == 0 ? "" : ", ", rng.chance(0.3) ? 32 : 64, devices);
  }
  return machine_from_json(
      fmt::format(R"({{"name": "unlike", "device_types": {{
        "card": {{"memory": "8GiB", "peak": {{"fp32": "10TFLOPS"}}, "memory_bandwidth": "500GB/s"}},
        "slow": {{"memory": "4GiB", "peak": {{"fp32": "4TFLOPS"}}, "memory_bandwidth": "200GB/s"}}}},
        "nodes": [{}]{}}})",
                  nodes,
                  hosts > 1 ? R"(, "network": {"bandwidth": "10GB/s", "latency": "5us"})" : ""),
      "test");
}

// Rows in the order of tokens, or in slots with room for any choice.
inline Graph random_mixture(Rng& rng, int64_t samples) {
  if (rng.chance(0.5)) return mixture(samples);
  return with_expert_slots(sequences(samples, 4), 2);
}

inline Graph random_network(Rng& rng) {
  switch (rng.integer(0, 9)) {
    case 0: return mlp(6, 2, 10);
    case 1: return cnn(2);
    case 2: return transformer(2, 1, rng.chance(0.5));
    case 3: return views(6);
    case 4: return unfused_transformer(rng.integer(2, 3));
    case 5: return lstm(rng.integer(2, 4));
    case 6: return random_mixture(rng, rng.integer(2, 5));
    case 7: return unet(rng.integer(1, 3));
    case 8: return noisy(rng.integer(2, 5));
    default: return cnn(1, true);
  }
}

// On so many samples, which can be cut.
inline Graph random_batch_network(Rng& rng, int64_t samples) {
  switch (rng.integer(0, 9)) {
    case 0: return mlp(samples, 2, 10);
    case 1: return transformer(samples, 1, rng.chance(0.5));
    case 2: return views(samples);
    case 3: return unfused_transformer(samples);
    case 4: return unet(samples);
    case 5: return cnn(samples);
    case 6: return repeated(samples);
    case 7: return lstm(samples, true);
    case 8: return random_mixture(rng, samples);
    default: return noisy(samples);
  }
}

struct RandomStep {
  std::string name;
  Machine machine;
  TrainingGraph training;
  std::optional<TrainingGraph> whole;  // of the batch, where micro-batches are unequal
  Strategy strategy;
  StepStart start;  // refers to `training`: made by begin()

  void begin(uint64_t seed) {
    start = random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  }
  // Of the step that is not split.
  StepEnd expected() const {
    return whole ? run_plainly(*whole, start_of_batch(*whole, start))
                 : run_plainly(training, start);
  }
};

// Small enough to be carried out slowly.
inline RandomStep random_step(uint64_t seed) {
  Rng rng(seed);
  RandomStep step;
  step.machine = rng.chance(0.5)
                     ? unlike_hosts(rng)
                     : machine(static_cast<int>(rng.integer(2, 4)), rng.chance(0.2) ? 2 : 1);
  Graph graph = random_network(rng);
  // More micro-batches than divide the batch.
  Rng sizes(seed, 3);
  int64_t parts = 1;
  if (sizes.chance(0.3)) {
    const int64_t samples = sizes.integer(3, 7);
    parts = sizes.integer(2, std::min<int64_t>(4, samples - 1));
    while (samples % parts == 0) ++parts;
    graph = random_batch_network(sizes, samples);
  }
  if (parts == 1 && Rng(seed, 5).chance(0.1)) graph = positions();
  if (rng.chance(0.2)) graph = with_dtype(graph, DType::BF16);
  TrainingOptions options;
  options.optimizer = static_cast<OptimizerKind>(rng.integer(0, 3));
  if (rng.chance(0.4)) options.clip_norm = rng.uniform(0.01, 0.3);
  step.training = cut_training(graph, parts, options).training;
  if (step.training.unequal) step.whole = differentiate(graph, options);
  step.strategy = random_strategy(step.training, step.machine, rng,
                                  {.in_turn = true,
                                   .blocks = true,
                                   .unequal = Rng(seed, 2).chance(0.5),
                                   .mixed = rng.chance(0.6)});
  Rng copying(seed, 4);
  if (copying.chance(0.4))
    for (DeviceType& type : step.machine.device_types) type.copies_itself = copying.chance(0.8);
  step.name =
      fmt::format("seed {}: {} on {} devices", seed, graph.name, step.machine.devices.size());
  return step;
}

}  // namespace windlass::cases
