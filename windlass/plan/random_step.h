// Random steps that the slow executor can carry out, for tests.
#pragma once

#include "windlass/base/rng.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::cases {

// Weights, state and data of a training graph.
inline StepStart random_start(const TrainingGraph& training, int32_t micro_batches, uint64_t seed) {
  const Graph& graph = training.graph;
  StepStart start;
  start.micro_batches = micro_batches;
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
  start.data = [&graph, random_array, seed](TensorId id, int32_t micro_batch) {
    Rng own(seed + 1 + id.index(), static_cast<uint64_t>(micro_batch));
    const TensorType& type = graph[id].type;
    if (is_float(type.dtype)) return random_array(type, own, -1, 1);
    Array array(type.shape);
    for (double& value : array.values) value = static_cast<double>(own.integer(0, 15));
    return array;
  };
  start.random = [seed](OpId op, int32_t micro_batch) {
    return RandomState{seed, op.index() * 1000 + static_cast<uint64_t>(micro_batch)};
  };
  return start;
}

// Ops whose pieces exchange statistics are split along these loops.
inline bool has_coupled_split(const TrainingGraph& training, const Strategy& strategy) {
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
    for (const Split& split : strategy.shardings[static_cast<size_t>(strategy.ops[i])].splits)
      if (split.loop >= 0 && split.parts > 1 &&
          nest.loops[static_cast<size_t>(split.loop)].role == LoopRole::Coupled)
        return true;
  }
  return false;
}

struct RandomStep {
  std::string name;
  Machine machine;
  TrainingGraph training;
  Strategy strategy;
  StepStart start;  // refers to `training`: made by begin()

  void begin(uint64_t seed) {
    start = random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  }
};

// Small enough to be carried out slowly.
inline RandomStep random_step(uint64_t seed) {
  Rng rng(seed);
  const int devices = static_cast<int>(rng.integer(2, 4));
  RandomStep step{{}, machine(devices, rng.chance(0.2) ? 2 : 1), {}, {}, {}};
  Graph graph;
  switch (rng.integer(0, 3)) {
    case 0: graph = mlp(6, 2, 10); break;
    case 1: graph = cnn(3); break;
    case 2: graph = transformer(3, 1, rng.chance(0.5)); break;
    default: graph = views(6); break;
  }
  TrainingOptions options;
  options.optimizer = rng.chance(0.5) ? OptimizerKind::Adam : OptimizerKind::Sgd;
  step.training = differentiate(graph, options);
  step.strategy = random_strategy(step.training, step.machine, rng);
  step.name =
      fmt::format("seed {}: {} on {} devices", seed, graph.name, step.machine.devices.size());
  return step;
}

}  // namespace windlass::cases
