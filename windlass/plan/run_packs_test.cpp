// Packs of layers at the grain of ops, carried out by the slow executor, are a plain training step.

#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/samples.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_packs.h"
#include "windlass/sim/simulate.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/packs/lower_packs.h"
#include "windlass/task/packs/pack_tasks.h"

namespace windlass {
namespace {

void expect_close(const Array& found, const Array& expected, const std::string& what) {
  ASSERT_EQ(found.values.size(), expected.values.size()) << what;
  double scale = 1e-3;
  for (double value : expected.values) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < found.values.size(); ++i)
    ASSERT_NEAR(found.values[i], expected.values[i], 1e-9 * scale) << what << ", element " << i;
}

void expect_plain_step(const TrainingGraph& training, const Machine& machine,
                       const PackStrategy& strategy, uint64_t seed) {
  const StepStart start = cases::random_start(training, 1, seed);
  TaskGraph tasks;
  StepEnd found;
  try {
    tasks = lower_packs(training, strategy, machine);
    check_task_graph(tasks);
    for (const std::string& finding :
         check_tasks(training, machine, strategy_of_packs(strategy), tasks))
      ADD_FAILURE() << finding;
    found = run_tasks(training, machine, tasks, start);
  } catch (const Error& error) {
    FAIL() << error.message();
  }
  const StepEnd expected = run_plainly(training, start);
  ASSERT_EQ(found.losses.size(), 1u);
  ASSERT_NEAR(found.losses[0], expected.losses[0], 1e-9 * std::abs(expected.losses[0]));
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t u = 0; u < expected.weights.size(); ++u) {
    const std::string& name = training.graph[training.graph.ops[first_update + u].inputs[0]].name;
    expect_close(found.gradients[u], expected.gradients[u], "gradient of " + name);
    expect_close(found.weights[u], expected.weights[u], "weight " + name);
    ASSERT_EQ(found.states[u].size(), expected.states[u].size());
    for (size_t k = 0; k < found.states[u].size(); ++k)
      expect_close(found.states[u][k], expected.states[u][k], "state of " + name);
  }
}

TEST(RunPacks, RandomPacksAreAPlainStep) {
  const char* many = std::getenv("WINDLASS_RANDOM_STEPS");
  const char* first = std::getenv("WINDLASS_RANDOM_SEED");
  const uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  const uint64_t count =
      many == nullptr ? sampled<uint64_t>(200) : std::strtoull(many, nullptr, 10);
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    const cases::RandomPacks step = cases::random_pack_step(seed);
    SCOPED_TRACE(step.name);
    expect_plain_step(step.training, step.machine, step.strategy, seed);
  }
}

// Harmony's runtime on even packs, by name.
TEST(RunPacks, NamedPacksAreAPlainStep) {
  for (const char* name : {"harmony:mode=pp,packs=3,micro=1", "harmony:mode=pp,micro-batches=2",
                           "harmony:mode=dp,packs=2,micro=1", "harmony:mode=dp"})
    for (int devices : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} on {}", name, devices));
      const Machine machine = cases::machine(devices);
      const PreparedStep step =
          prepare_step(cases::transformer(6, 2, true), parse_baseline(name), machine, {});
      ASSERT_TRUE(step.strategy.packs.has_value());
      expect_plain_step(step.training, machine, *step.strategy.packs, 1);
    }
}

// A strategy that fits by the layer profile of a network runs in the same memory at the grain of
// ops: where its peak would be higher, tasks that bring something early wait.
TEST(RunPacks, WhatFitsByLayersFitsByOps) {
  const auto cost = analytic_cost_model();
  Simulator simulator;
  int fits = 0, tried = 0;
  for (uint64_t seed = 1; seed <= sampled<uint64_t>(400); ++seed) {
    const cases::RandomPacks step = cases::large_pack_step(seed);
    const LayerProfile profile =
        chain_of_network(step.network, step.training.options, step.machine, *cost);
    ChainTables tables(profile);
    PackLowering layers(tables, step.machine);
    const PackSteps* coarse = layers.lower(step.strategy, find_samples(step.training).samples, 1);
    ASSERT_NE(coarse, nullptr);
    const SimResult by_layers =
        simulator.run(*coarse->graph, *coarse->times, {.enforce_limits = false});
    TaskGraph ops = lower_packs(step.training, step.strategy, step.machine);
    for (size_t m = 0; m + 1 < ops.memories.size(); ++m)
      ops.memories[m].limit = Bytes(by_layers.peaks[m].bytes);
    ++tried;
    const SimResult& result = simulator.run(ops, price_tasks(ops, step.machine, *cost));
    if (result.status == SimStatus::Done) ++fits;
  }
  // But for micro-batches between those that were priced, and where samples are joined.
  EXPECT_GE(fits, tried * 97 / 100);
}

}  // namespace
}  // namespace windlass
