// A step that several processes carry out ends with the bits of one process: random strategies on
// one and several hosts, packs of layers, with a process for each host or for each device.

#include <algorithm>
#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/runtime/thread_ranks.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::on_every_rank;
using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

uint64_t number_from(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

BatchAxes batch_of_network(const TrainingGraph& training) {
  Graph forward = training.graph;
  forward.ops.resize(training.forward_ops);
  return find_batch(forward);
}

// That all ranks end with what one process ends with. Returns how many ways there were to divide
// the devices.
size_t expect_same_bits(const TrainingGraph& training, const Machine& machine,
                        const SimulatedStep& step, const StepStart& start, const BatchAxes& batch) {
  const auto run = [&](const RunSettings& settings) {
    return run_steps(training, machine, step.tasks, step.times, step.result, start, batch,
                     settings);
  };
  const RunEnd expected = run({});
  std::set<size_t> counts = {machine.nodes.size(), machine.devices.size()};
  counts.erase(1);
  for (size_t count : counts) {
    SCOPED_TRACE(count);
    on_every_rank(static_cast<int32_t>(count), [&](Ranks& ranks) {
      RunSettings settings;
      settings.ranks = &ranks;
      const RunEnd found = run(settings);
      EXPECT_EQ(found.losses, expected.losses);
      EXPECT_EQ(found.norms, expected.norms);
      EXPECT_TRUE(found.last.bits == expected.last.bits) << "rank " << ranks.rank();
      // All know of every device and of every task.
      for (int64_t peak : found.outcome.device_peaks) EXPECT_GE(peak, 0);
      EXPECT_EQ(found.outcome.device_peaks.size(), machine.devices.size());
      EXPECT_EQ(std::ranges::count(found.outcome.end, -1), 0);
    });
  }
  return counts.size();
}

TEST(ManyRanks, RandomStrategiesEndWithTheBitsOfOneProcess) {
  const uint64_t begin = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(120));
  size_t ways = 0;
  for (uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    step.begin(seed);
    SCOPED_TRACE(step.name);
    try {
      const SimulatedStep simulated =
          simulate_step(step.training, step.strategy, step.machine, *analytic_cost_model(), {});
      ways += expect_same_bits(step.training, step.machine, simulated, step.start,
                               batch_of_network(step.training));
    } catch (const Error& error) {
      ADD_FAILURE() << error.message();
    }
  }
  EXPECT_GE(ways, count > 20 ? count / 4 : 0);
}

TEST(ManyRanks, RandomPacksEndWithTheBitsOfOneProcess) {
  const uint64_t begin = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(60));
  size_t ways = 0;
  for (uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
    const cases::RandomPacks packs = cases::random_pack_step(seed);
    SCOPED_TRACE(packs.name);
    const StepStart start = cases::random_start(packs.training, 1, seed);
    try {
      SimulatedStep step;
      step.tasks = lower_packs(packs.training, packs.strategy, packs.machine);
      step.times = price_tasks(step.tasks, packs.machine, *analytic_cost_model());
      Simulator simulator;
      step.result = simulator.run(step.tasks, step.times);
      ASSERT_EQ(step.result.status, SimStatus::Done);
      ways += expect_same_bits(packs.training, packs.machine, step, start,
                               batch_of_network(packs.training));
    } catch (const Error& error) {
      ADD_FAILURE() << error.message();
    }
  }
  EXPECT_GE(ways, count > 20 ? count / 4 : 0);
}

}  // namespace
}  // namespace windlass
