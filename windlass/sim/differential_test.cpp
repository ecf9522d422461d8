// The simulator against the reference, bit for bit, on random task graphs.

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/sim/reference/naive.h"
#include "windlass/sim/reference/random_tasks.h"
#include "windlass/sim/simulate.h"
#include "windlass/sim/timeline_check.h"

namespace windlass {
namespace {

void expect_equal(const SimResult& fast, const SimResult& naive) {
  ASSERT_EQ(fast.status, naive.status);
  EXPECT_EQ(fast.makespan, naive.makespan);
  EXPECT_EQ(fast.ended, naive.ended);
  EXPECT_EQ(fast.start, naive.start);
  EXPECT_EQ(fast.end, naive.end);
  EXPECT_EQ(fast.failed_task, naive.failed_task);
  EXPECT_EQ(fast.failed_memory, naive.failed_memory);
  EXPECT_EQ(fast.missing_bytes, naive.missing_bytes);
  EXPECT_EQ(fast.cycle, naive.cycle);
  ASSERT_EQ(fast.peaks.size(), naive.peaks.size());
  for (size_t i = 0; i < fast.peaks.size(); ++i) {
    EXPECT_EQ(fast.peaks[i].bytes, naive.peaks[i].bytes);
    EXPECT_EQ(fast.peaks[i].time, naive.peaks[i].time);
    EXPECT_EQ(fast.peaks[i].task, naive.peaks[i].task);
  }
}

struct Counts {
  int done = 0, out_of_memory = 0, deadlock = 0;
};

void hold_against_naive(const RandomTasks& random, Simulator& simulator, Counts& counts) {
  check_task_graph(random.graph);
  for (const bool enforce : {true, false}) {
    const SimOptions options{enforce};
    const SimResult& fast = simulator.run(random.graph, random.times, options);
    expect_equal(fast, simulate_naively(random.graph, random.times, options));
    if (testing::Test::HasFailure()) return;
    if (enforce && fast.status == SimStatus::Done) ++counts.done;
    if (fast.status == SimStatus::OutOfMemory) ++counts.out_of_memory;
    if (enforce && fast.status == SimStatus::Deadlock) ++counts.deadlock;
    EXPECT_EQ(check_timeline(random.graph, random.times, fast), std::vector<std::string>{});
    if (!enforce || fast.status != SimStatus::Done) continue;
    for (size_t i = 0; i < fast.peaks.size(); ++i)
      EXPECT_LE(fast.peaks[i].bytes, random.graph.memories[i].limit.value);
  }
}

TEST(Differential, RandomGraphsEqualTheReference) {
  Simulator simulator;
  Counts counts;
  for (uint64_t seed = 0; seed < sampled(5000u) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    hold_against_naive(random_tasks(rng, static_cast<size_t>(rng.integer(1, 150))), simulator,
                       counts);
  }
  // Each outcome is common enough to be tested.
  EXPECT_GT(counts.done, sampled(500));
  EXPECT_GT(counts.out_of_memory, sampled(300));
  EXPECT_GT(counts.deadlock, sampled(100));
}

TEST(Differential, TrainingLikeGraphsEqualTheReference) {
  Simulator simulator;
  Counts counts;
  for (uint64_t seed = 0; seed < 5 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    hold_against_naive(training_like_tasks(seed, 3000, 1 + seed), simulator, counts);
  }
  EXPECT_EQ(counts.done, 5);
}

TEST(DifferentialSlow, ManyRandomGraphsEqualTheReference) {
  Simulator simulator;
  Counts counts;
  const uint64_t graphs = thorough() ? 100'000 : 20'000;
  for (uint64_t seed = 0; seed < graphs && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 2);
    hold_against_naive(random_tasks(rng, static_cast<size_t>(rng.integer(1, 60))), simulator,
                       counts);
  }
}

}  // namespace
}  // namespace windlass
