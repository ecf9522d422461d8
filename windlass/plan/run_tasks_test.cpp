// What a task graph says, carried out by the slow executor, is a plain training step.

#include "windlass/task/reference/run_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

constexpr double kLeftOut = -100;

// Weights, state and data of a training graph. Of the labels of even micro-batches many are left
// out, of the second one all; the first of all counts.
StepStart random_start(const TrainingGraph& training, int32_t micro_batches, uint64_t seed) {
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

void expect_near(const Array& found, const Array& expected, const std::string& what) {
  ASSERT_EQ(found.values.size(), expected.values.size()) << what;
  double scale = 1e-3;
  for (double value : expected.values) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < found.values.size(); ++i)
    ASSERT_NEAR(found.values[i], expected.values[i], 1e-9 * scale) << what << ", element " << i;
}

void expect_same_step(const TrainingGraph& training, const Machine& machine,
                      const Strategy& strategy, uint64_t seed) {
  const StepStart start =
      random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  const TaskGraph tasks = lower(training, strategy, machine);
  StepEnd found;
  try {
    found = run_tasks(training, machine, tasks, start);
  } catch (const Error& error) {
    FAIL() << error.message();
  }
  const StepEnd expected = run_plainly(training, start);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t m = 0; m < found.losses.size(); ++m)
    ASSERT_NEAR(found.losses[m], expected.losses[m], 1e-9 * std::abs(expected.losses[m]));
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t u = 0; u < expected.weights.size(); ++u) {
    const std::string& name = training.graph[training.graph.ops[first_update + u].inputs[0]].name;
    expect_near(found.gradients[u], expected.gradients[u], "gradient of " + name);
    expect_near(found.weights[u], expected.weights[u], "weight " + name);
    ASSERT_EQ(found.states[u].size(), expected.states[u].size());
    for (size_t k = 0; k < found.states[u].size(); ++k)
      expect_near(found.states[u][k], expected.states[u][k], "state of " + name);
  }
}

// The same labels and inputs as of one batch, whose loss is the mean over all labels that count.
TEST(RunTasks, MicroBatchesAreTheBatch) {
  for (const Graph& graph : {cases::mlp(6, 2, 8), cases::transformer(6, 1)}) {
    SCOPED_TRACE(graph.name);
    const TrainingGraph whole = differentiate(graph);
    const TrainingGraph part = cut_training(graph, 3, {}).training;
    StepStart start = random_start(part, 3, 1);
    const StepEnd cut = run_plainly(part, start);
    const auto data = start.data;
    start.micro_batches = 1;
    start.data = [&](TensorId id, int32_t) {
      Array all(whole.graph[id].type.shape);
      all.values.clear();
      for (int32_t m = 0; m < 3; ++m)
        std::ranges::copy(data(id, m).values, std::back_inserter(all.values));
      return all;
    };
    start.values.resize(whole.graph.tensors.size());
    const StepEnd expected = run_plainly(whole, start);
    double loss = 0;
    for (double term : cut.losses) loss += term / 3;
    EXPECT_NEAR(loss, expected.losses[0], 1e-12);
    ASSERT_EQ(cut.gradients.size(), expected.gradients.size());
    for (size_t u = 0; u < cut.gradients.size(); ++u)
      expect_near(cut.gradients[u], expected.gradients[u], "gradient");
  }
}

TEST(RunTasks, OneDevice) {
  const Machine machine = cases::machine(1);
  for (const Graph& graph :
       {cases::mlp(4, 2, 8), cases::cnn(2), cases::transformer(2, 1), cases::views(4)}) {
    const TrainingGraph training = differentiate(graph);
    SCOPED_TRACE(graph.name);
    expect_same_step(training, machine, plain_strategy(training, DeviceId(size_t{0})), 1);
  }
}

// Ops whose pieces exchange statistics are not split along these loops.
bool coupled(const TrainingGraph& training, const Strategy& strategy) {
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
    for (const Split& split : strategy.shardings[static_cast<size_t>(strategy.ops[i])].splits)
      if (split.loop >= 0 && split.parts > 1 &&
          nest.loops[static_cast<size_t>(split.loop)].role == LoopRole::Coupled)
        return true;
  }
  return false;
}

TEST(RunTasks, RandomStrategies) {
  const char* many = std::getenv("WINDLASS_RANDOM_STEPS");
  const char* first = std::getenv("WINDLASS_RANDOM_SEED");
  const uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  const uint64_t count =
      many == nullptr ? sampled<uint64_t>(160) : std::strtoull(many, nullptr, 10);
  uint64_t run = 0;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    Rng rng(seed);
    const int devices = static_cast<int>(rng.integer(2, 4));
    const Machine machine = cases::machine(devices, rng.chance(0.2) ? 2 : 1);
    Graph graph;
    switch (rng.integer(0, 3)) {
      case 0: graph = cases::mlp(6, 2, 10); break;
      case 1: graph = cases::cnn(3); break;
      case 2: graph = cases::transformer(3, 1, rng.chance(0.5)); break;
      default: graph = cases::views(6); break;
    }
    TrainingOptions options;
    options.optimizer = rng.chance(0.5) ? OptimizerKind::Adam : OptimizerKind::Sgd;
    const TrainingGraph training = differentiate(graph, options);
    const Strategy strategy = cases::random_strategy(training, machine, rng);
    if (coupled(training, strategy)) continue;
    SCOPED_TRACE(
        fmt::format("seed {}: {} on {} devices", seed, graph.name, machine.devices.size()));
    expect_same_step(training, machine, strategy, seed);
    ++run;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(run, count / 8);
}

}  // namespace
}  // namespace windlass
