// Steps on several devices are those of one device: every op under every sharding, random
// strategies, packs of layers.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/every_sharding.h"
#include "windlass/plan/paged_step.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/task/lower.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

RunEnd run(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
           const StepStart& start, const BatchAxes& batch, const RunSettings& settings = {}) {
  const SimulatedStep step = simulate_step(training, strategy, machine, *analytic_cost_model(), {});
  return run_steps(training, machine, step.tasks, step.times, step.result, start, batch, settings);
}

// Of types of 16 bits, which are compared as a whole: single elements are mostly rounding.
constexpr double kNarrow = 0.3;

// Sums are rounded in another order.
void expect_close(const std::map<std::string, std::vector<double>>& found,
                  const std::map<std::string, std::vector<double>>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double most = 0;  // over all: what is zero but for rounding has no scale of its own
  for (const auto& [name, values] : expected)
    for (double value : values) most = std::max(most, std::abs(value));
  double apart = 0, all = 0;
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.contains(name)) << what << " of " << name;
    const std::vector<double>& other = found.at(name);
    ASSERT_EQ(other.size(), values.size()) << what << " of " << name;
    for (size_t i = 0; i < values.size(); ++i) {
      apart += (other[i] - values[i]) * (other[i] - values[i]);
      all += values[i] * values[i];
    }
    if (tolerance >= kNarrow) continue;
    double scale = 1e-2 * most + 1e-6;
    for (double value : values) scale = std::max(scale, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(other[i], values[i], tolerance * scale)
          << what << " of " << name << ", element " << i;
  }
  ASSERT_LE(apart, tolerance * tolerance * all + 1e-12) << what;
}

void expect_same_run(const RunEnd& found, const RunEnd& expected, double tolerance) {
  // Later steps of small networks make much of the rounding of the first.
  const double later = std::max(tolerance, 2e-2);
  for (size_t s = 0; s < expected.losses.size(); ++s)
    ASSERT_NEAR(found.losses[s], expected.losses[s],
                (s == 0 ? tolerance : later) * std::max(1.0, std::abs(expected.losses[s])))
        << "loss of step " << s + 1;
  expect_close(found.gradients, expected.gradients, tolerance, "gradient");
  expect_close(found.first.weights, expected.first.weights, tolerance, "weight");
  expect_close(found.first.states, expected.first.states, tolerance, "state");
  expect_close(found.last.weights, expected.last.weights, later, "last weight");
}

double tolerance_of(const Graph& graph) {
  const bool narrow = std::ranges::any_of(graph.tensors, [](const Tensor& tensor) {
    return tensor.type.dtype == DType::BF16 || tensor.type.dtype == DType::F16;
  });
  return narrow ? kNarrow : 1e-4;
}

uint64_t from_environment(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

BatchAxes batch_of(const TrainingGraph& training) {
  Graph forward = training.graph;
  forward.ops.resize(training.forward_ops);
  return find_batch(forward);
}

// The same samples on one device, in as many micro-batches.
RunEnd run_plain(const TrainingGraph& training, const StepStart& start, const BatchAxes& batch) {
  Strategy plain = plain_strategy(training, DeviceId(size_t{0}));
  plain.micro_batches = start.micro_batches;
  return run(training, cases::machine(1), plain, start, batch);
}

// It is lossy, by numbers that are drawn for each task.
void no_compression(Strategy& strategy) {
  for (MemoryAction& action : strategy.saved)
    if (compressed_bits(action) > 0) action = MemoryAction::Offload;
}

TEST(ManyDevices, RandomStrategiesTrainAsOneDevice) {
  const uint64_t begin = from_environment("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = from_environment("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(120));
  uint64_t ran = 0;
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    if (step.machine.nodes.size() > 1) continue;
    no_compression(step.strategy);
    step.begin(seed);
    SCOPED_TRACE(step.name);
    const BatchAxes batch = batch_of(step.training);
    try {
      const RunEnd expected = run_plain(step.training, step.start, batch);
      const RunEnd found = run(step.training, step.machine, step.strategy, step.start, batch);
      expect_same_run(found, expected, tolerance_of(step.training.graph));
    } catch (const Error& error) {
      FAIL() << error.message();
    }
    ++ran;
  }
  EXPECT_GE(ran, count > 20 ? count / 4 : 0);
}

TEST(ManyDevices, EveryOpUnderEverySharding) {
  size_t runs = 0, number = 0;
  for (const reference::OpCase& c : reference::op_cases(9)) {
    if (hurried() && number++ % 3 != 0) continue;
    SCOPED_TRACE(c.name);
    std::optional<RunEnd> expected;
    cases::for_every_sharding(
        c, [&](const TrainingGraph& training, const StepStart& start, const Machine& machine,
               const Strategy& strategy, const std::string& what) {
          if (testing::Test::HasFatalFailure()) return;
          SCOPED_TRACE(what);
          const RunSettings once = {.steps = 1};
          try {
            if (!expected)
              expected = run(training, cases::machine(1),
                             plain_strategy(training, DeviceId(size_t{0})), start, {}, once);
            const RunEnd found = run(training, machine, strategy, start, {}, once);
            expect_same_run(found, *expected, tolerance_of(training.graph));
          } catch (const Error& error) {
            FAIL() << error.message();
          }
          ++runs;
        });
  }
  EXPECT_GT(runs, 100U);
}

TEST(ManyDevices, DelaysChangeNothing) {
  uint64_t ran = 0;
  for (uint64_t seed = 1; ran < sampled<uint64_t>(40) && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    if (step.machine.nodes.size() > 1) continue;
    ++ran;
    step.begin(seed);
    SCOPED_TRACE(step.name);
    const BatchAxes batch = batch_of(step.training);
    const RunEnd expected = run(step.training, step.machine, step.strategy, step.start, batch);
    for (uint64_t trial = 1; trial <= 2; ++trial) {
      RunSettings settings;
      settings.delay = [&](int32_t task, int32_t part) {
        const uint64_t drawn = random_bits(seed, trial, static_cast<uint64_t>(task * 8 + part + 1));
        if (drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 4 % 300));
      };
      const RunEnd found =
          run(step.training, step.machine, step.strategy, step.start, batch, settings);
      ASSERT_EQ(found.losses, expected.losses);
      ASSERT_TRUE(found.last.bits == expected.last.bits);
    }
  }
}

// Paging moves bytes and changes none. Kernels have room for what they need beside.
TEST(ManyDevices, PagedStepsTrainAsOthers) {
  const uint64_t begin = from_environment("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = from_environment("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(60));
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    if (step.machine.nodes.size() > 1) continue;
    no_compression(step.strategy);
    step.begin(seed);
    SCOPED_TRACE(step.name);
    const BatchAxes batch = batch_of(step.training);
    try {
      RunSettings settings = {.steps = 3};
      const RunEnd expected =
          run(step.training, step.machine, step.strategy, step.start, batch, settings);
      const Machine small = cases::paged_machine(step.training, step.strategy, step.machine,
                                                 seed % 3 == 0   ? 1
                                                 : seed % 3 == 1 ? 1.5
                                                                 : 4);
      step.strategy.virtual_memory = true;
      const TaskGraph tasks = lower(step.training, step.strategy, small);
      TaskTimes times = price_tasks(tasks, small, *analytic_cost_model());
      std::ranges::fill(times.workspace, 0);
      Simulator simulator;
      const SimResult simulated = simulator.run(tasks, times);
      ASSERT_EQ(simulated.status, SimStatus::Done);
      const RunEnd found = run_steps(step.training, step.machine, tasks, times, simulated,
                                     step.start, batch, settings);
      ASSERT_EQ(found.losses, expected.losses);
      ASSERT_EQ(found.last.weights, expected.last.weights);
      ASSERT_EQ(found.last.states, expected.last.states);
    } catch (const Error& error) {
      FAIL() << error.message();
    }
  }
}

TEST(ManyDevices, RandomPacksTrainAsOneDevice) {
  const uint64_t begin = from_environment("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = from_environment("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(80));
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    const cases::RandomPacks step = cases::random_pack_step(seed);
    SCOPED_TRACE(step.name);
    const StepStart start = cases::random_start(step.training, 1, seed);
    const BatchAxes batch = batch_of(step.training);
    try {
      const TaskGraph tasks = lower_packs(step.training, step.strategy, step.machine);
      const auto cost = analytic_cost_model();
      const TaskTimes times = price_tasks(tasks, step.machine, *cost);
      Simulator simulator;
      const SimResult simulated = simulator.run(tasks, times);
      ASSERT_EQ(simulated.status, SimStatus::Done);
      const RunEnd found =
          run_steps(step.training, step.machine, tasks, times, simulated, start, batch);
      expect_same_run(found, run_plain(step.training, start, batch),
                      tolerance_of(step.training.graph));
    } catch (const Error& error) {
      FAIL() << error.message();
    }
  }
}

}  // namespace
}  // namespace windlass
