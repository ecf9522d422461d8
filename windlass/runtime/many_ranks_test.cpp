// A step that several processes carry out ends with the bits of one process: random strategies on
// one and several hosts, packs of layers, with a process for each host or for each device.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_packs.h"
#include "windlass/runtime/random_run.h"
#include "windlass/runtime/thread_ranks.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::batch_of_network;
using testing_runs::on_every_rank;
using testing_runs::RandomRun;
using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

uint64_t number_from(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

// Optimizers divide by gradients, and may turn the rounding of one that is about zero into a step
// of the whole rate: of such there are few.
void expect_near_all(const std::vector<double>& found, const std::vector<double>& expected,
                     const std::string& name) {
  ASSERT_EQ(found.size(), expected.size());
  double most = 1e-3;
  for (double value : expected) most = std::max(most, std::abs(value));
  size_t apart = 0;
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::abs(found[i] - expected[i]) <= 1e-3 * most)) ++apart;
  EXPECT_LE(apart, found.size() / 50 + 1) << name;
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
    SCOPED_TRACE(seed);
    try {
      const RandomRun random(seed);
      SCOPED_TRACE(random.step.name);
      ways += expect_same_bits(random.step.training, random.step.machine, random.simulated,
                               random.step.start, random.batch);
    } catch (const Error& error) {
      ADD_FAILURE() << error.message();
    }
  }
  EXPECT_GE(ways, count > 20 ? count / 4 : 0);
}

// Sums that the library makes round in another way: two steps of random strategies end with about
// the same, and most of what is added up between processes is added up so.
TEST(ManyRanks, SumsOfTheLibraryAgreeToRounding) {
  const uint64_t begin = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(60));
  std::atomic<int64_t> sums = 0;
  for (uint64_t seed = begin; seed < begin + count && !HasFailure(); ++seed) {
    const RandomRun random(seed);
    if (random.devices() == 1) continue;
    SCOPED_TRACE(random.step.name);
    const RunEnd expected = random.run({});
    on_every_rank(random.devices(), [&](Ranks& ranks) {
      RunSettings settings;
      settings.ranks = &ranks;
      settings.library_sums = true;
      const RunEnd found = random.run(settings);
      sums += dynamic_cast<testing_runs::ThreadRanks&>(ranks).library_sums;
      ASSERT_EQ(found.losses.size(), expected.losses.size());
      EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-4 * (1 + std::abs(expected.losses[0])));
      for (const auto& [name, values] : found.first.weights)
        expect_near_all(values, expected.first.weights.at(name), name);
    });
  }
  EXPECT_GT(sums, 0);
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
