// Whatever the limits: more memory never gives a slower plan, and never none.

#include "windlass/search/ladder.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_strategy.h"

namespace windlass {
namespace {

Machine with_limits(const Machine& machine, int64_t limit) {
  Machine result = machine;
  for (Device& device : result.devices) device.limit = Bytes(limit);
  return result;
}

struct LadderCase {
  Graph network;
  Machine machine;
};

LadderCase random_case(uint64_t seed) {
  Rng rng(seed);
  const int devices = 1 << rng.integer(0, 2);
  const int64_t batch = 4 << rng.integer(0, 2);
  const auto depth = static_cast<int64_t>(1 + rng.integer(0, 2));
  switch (rng.integer(0, 2)) {
    case 0: return {cases::mlp(batch, depth + 1, 32 << rng.integer(0, 2)), cases::machine(devices)};
    case 1: return {cases::cnn(batch, rng.chance(0.5)), cases::machine(devices)};
    default: return {cases::transformer(batch, depth, rng.chance(0.5)), cases::machine(devices)};
  }
}

TEST(Ladder, MoreMemoryIsNeverSlower) {
  constexpr int kLimits = 7;
  const auto cost = analytic_cost_model();
  int capped = 0, feasible = 0, infeasible = 0;
  for (uint64_t seed = 1; seed <= sampled(6u); ++seed) {
    const LadderCase at = random_case(seed);
    SCOPED_TRACE(
        fmt::format("seed {}: {} on {}", seed, at.network.name, at.machine.devices.size()));
    const SearchOptions options = {.time_limit = Seconds(3600), .effort = 0.02};
    const auto search = [&](const Machine& machine) {
      return search_all({.network = at.network, .machine = machine, .cost = *cost}, options);
    };
    const SearchResult none = search(with_limits(at.machine, 1));
    ASSERT_EQ(none.termination, Termination::Infeasible);
    ASSERT_TRUE(none.least_limit.has_value());
    const int64_t least = none.least_limit->value;
    // To the byte, and from there to beyond what everything needs.
    std::vector<int64_t> limits = {least - 1, least, least * 64};
    Rng rng(seed, 1);
    for (int i = 0; i < kLimits; ++i)
      limits.push_back(static_cast<int64_t>(static_cast<double>(least) *
                                            std::pow(16, 1.1 * rng.uniform() - 0.1)));
    std::ranges::sort(limits);
    std::optional<Seconds> before;
    for (const int64_t limit : limits) {
      const Machine machine = with_limits(at.machine, limit);
      const SearchResult found = search(machine);
      ASSERT_EQ(found.termination == Termination::Infeasible, limit < least) << limit;
      if (limit < least) {
        EXPECT_EQ(found.least_limit->value, least) << limit;
        ++infeasible;
        continue;
      }
      ++feasible;
      if (before) {
        EXPECT_LE(found.step_time, *before) << limit;
      }
      before = found.step_time;
      capped += found.strategy.memory_cap.value > 0;
      const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
      ASSERT_EQ(step.result.status, SimStatus::Done) << limit;
      EXPECT_EQ(Seconds(static_cast<double>(step.result.makespan) * 1e-9) + step.overhead,
                found.step_time);
      EXPECT_EQ(check_tasks(found.training, machine, found.strategy, step.tasks),
                std::vector<std::string>{});
    }
  }
  EXPECT_GT(feasible, infeasible);
  RecordProperty("capped", capped);
}

// A step with a cap is the same under every limit above it, and stays below the cap.
TEST(MemoryCap, TheStepIsTheSameFromThereOn) {
  const auto cost = analytic_cost_model();
  const TrainingGraph training = differentiate(cases::transformer(8, 2, false));
  int waited = 0;
  // Few of them wait for memory.
  for (uint64_t seed = 1; seed <= std::max(60u, sampled(200u)); ++seed) {
    Rng rng(seed);
    const Machine machine = cases::machine(2);
    Strategy strategy = cases::random_strategy(training, machine, rng, {});
    const SimulatedStep free =
        simulate_step(training, strategy, with_limits(machine, int64_t{1} << 40), *cost);
    int64_t peak = 0;
    for (size_t m = 0; m < free.tasks.memories.size(); ++m)
      if (free.tasks.memories[m].team.valid()) peak = std::max(peak, free.result.peaks[m].bytes);
    const auto limit =
        static_cast<int64_t>(static_cast<double>(peak) * (0.7 + 0.3 * rng.uniform()));
    const SimulatedStep tight =
        simulate_step(training, strategy, with_limits(machine, limit), *cost);
    strategy.memory_cap = Bytes(limit);
    const SimulatedStep capped =
        simulate_step(training, strategy, with_limits(machine, 3 * peak), *cost);
    ASSERT_EQ(capped.result.status, tight.result.status) << "seed " << seed;
    if (tight.result.status != SimStatus::Done) continue;
    waited += tight.result.makespan != free.result.makespan;
    EXPECT_EQ(capped.result.makespan, tight.result.makespan) << "seed " << seed;
    EXPECT_EQ(capped.result.start, tight.result.start) << "seed " << seed;
    for (size_t m = 0; m < capped.tasks.memories.size(); ++m)
      if (capped.tasks.memories[m].team.valid()) {
        EXPECT_LE(capped.result.peaks[m].bytes, limit);
      }
  }
  EXPECT_GT(waited, 0);
}

}  // namespace
}  // namespace windlass
