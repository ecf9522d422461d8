// Evaluation on the devices of a plan is the forward pass of a trained model, whatever the plan.

#include "windlass/runtime/device_evaluation.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/runtime/evaluation.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

// Trains for two steps and evaluates after each of them, by the plan and op by op; then the same
// without evaluating.
void expect_evaluations(const TrainingGraph& training, const Machine& machine,
                        const SimulatedStep& step, const StepStart& start, size_t& evaluated) {
  const Graph& graph = training.graph;
  const BatchAxes batch = testing_runs::batch_of_network(training);
  const bool narrow = std::ranges::any_of(graph.tensors, [](const Tensor& tensor) {
    return tensor.type.dtype == DType::BF16 || tensor.type.dtype == DType::F16;
  });
  const double tolerance = narrow ? 2e-2 : 1e-4;
  StepRequest request;
  request.step = 0;
  request.evaluates = true;
  request.load = [&](TensorId id, int32_t micro_batch, std::span<std::byte> out) {
    testing_runs::store_array(start.data(id, std::max(0, micro_batch)), graph[id].type.dtype, out);
  };
  request.mean_counts =
      load_mean_counts(graphs_of(training), batch, start.micro_batches, request.load);
  std::unique_ptr<DeviceEvaluation> evaluation;
  RunSettings settings;
  settings.after_step = [&](int, Executor& executor) {
    if (!evaluation)
      evaluation = std::make_unique<DeviceEvaluation>(
          training, step, machine,
          ExecutorOptions{.threads = 1, .sample_axes = batch.axis, .pace = false}, executor);
    const std::vector<int64_t> before = executor.live_bytes();
    double found = 0, expected = 0;
    for (double loss : evaluation->run(request)) found += loss;
    EXPECT_EQ(executor.live_bytes(), before);
    for (int32_t m = 0; m < start.micro_batches; ++m)
      expected += evaluate_loss(
          training, executor,
          [&](TensorId id, std::span<std::byte> out) { request.load(id, m, out); },
          request.mean_counts, m);
    if (!std::isnan(found) || !std::isnan(expected)) {
      EXPECT_NEAR(found, expected, tolerance * std::max(1.0, std::abs(expected)));
    }
    ++evaluated;
    for (size_t m = 0; m < evaluation->peaks().size(); ++m)
      EXPECT_LE(evaluation->peaks()[m], step.tasks.memories[m].limit.value);
    for (const Task& task : evaluation->step().tasks.tasks)
      EXPECT_TRUE(task.kind == TaskKind::Forward || task.kind == TaskKind::Join ||
                  moves(task.kind));
  };
  const auto run = [&](const RunSettings& how) {
    return run_steps(training, machine, step.tasks, step.times, step.result, start, batch, how);
  };
  const RunEnd with = run(settings);
  evaluation.reset();
  const RunEnd without = run({});
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_TRUE(with.last.bits == without.last.bits);
}

TEST(DeviceEvaluation, RandomStrategiesEvaluateAsTheForwardPass) {
  size_t evaluated = 0;
  for (uint64_t seed = 1;
       seed <= (thorough() ? 600 : sampled<uint64_t>(80)) && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    // Noise is drawn for the whole batch, and op by op for a micro-batch.
    const bool noisy = std::ranges::find(step.training.graph.ops, OpKind::Random, &Op::kind) !=
                       step.training.graph.ops.end();
    if (step.machine.nodes.size() > 1 || noisy) continue;
    step.begin(seed);
    SCOPED_TRACE(step.name);
    const SimulatedStep simulated =
        simulate_step(step.training, step.strategy, step.machine, *analytic_cost_model());
    try {
      expect_evaluations(step.training, step.machine, simulated, step.start, evaluated);
    } catch (const Error& error) {
      FAIL() << error.message();
    }
  }
  EXPECT_GE(evaluated, sampled<size_t>(80) / 4);
}

TEST(DeviceEvaluation, RandomPacksEvaluateAsTheForwardPass) {
  size_t evaluated = 0;
  for (uint64_t seed = 1;
       seed <= (thorough() ? 300 : sampled<uint64_t>(40)) && !testing::Test::HasFailure(); ++seed) {
    const cases::RandomPacks step = cases::random_pack_step(seed);
    SCOPED_TRACE(step.name);
    const StepStart start = cases::random_start(step.training, 1, seed);
    try {
      SimulatedStep simulated;
      simulated.tasks = lower_packs(step.training, step.strategy, step.machine);
      simulated.times = price_tasks(simulated.tasks, step.machine, *analytic_cost_model());
      simulated.result = Simulator().run(simulated.tasks, simulated.times);
      expect_evaluations(step.training, step.machine, simulated, start, evaluated);
    } catch (const Error& error) {
      FAIL() << error.message();
    }
  }
  EXPECT_GE(evaluated, sampled<size_t>(40) / 2);
}

TEST(DeviceEvaluation, WhatCannotBeRunByItselfIsRefused) {
  cases::RandomStep step = cases::random_step(1);
  SimulatedStep simulated =
      simulate_step(step.training, step.strategy, step.machine, *analytic_cost_model());
  EXPECT_NO_THROW(evaluation_step(step.training, simulated));
  for (Memory& memory : simulated.tasks.memories) memory.limit = Bytes(1);
  try {
    evaluation_step(step.training, simulated);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
  }
}

}  // namespace
}  // namespace windlass
