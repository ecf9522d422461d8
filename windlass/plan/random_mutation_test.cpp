// Random changes of what random task graphs say are found by the checker, or harmless.

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_mutations.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using cases::number_from;

TEST(RandomMutation, FoundOrHarmless) {
  const uint64_t first = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(25));
  const uint64_t each = number_from("WINDLASS_MUTATIONS", 4);
  cases::Mutations mutations;
  int steps = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    SCOPED_TRACE(step.name);
    step.begin(seed);
    const auto check = [&](const TaskGraph& graph) {
      return check_tasks(step.training, step.machine, step.strategy, graph);
    };
    const TaskGraph clean = lower(step.training, step.strategy, step.machine);
    if (mutations.try_all({step.training, step.machine, step.start, step.strategy.micro_batches,
                           check, [&] { return step.expected(); }},
                          clean, seed, each))
      ++steps;
  }
  EXPECT_GT(steps, static_cast<int>(count / 8));
  mutations.print();
}

// The same of packs of layers at the grain of ops.
TEST(RandomMutation, OfPacksFoundOrHarmless) {
  const uint64_t first = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(25));
  const uint64_t each = number_from("WINDLASS_MUTATIONS", 4);
  cases::Mutations mutations;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const cases::RandomPacks step = cases::random_pack_step(seed);
    SCOPED_TRACE(step.name);
    const StepStart start = cases::random_start(step.training, 1, seed);
    const Strategy strategy = strategy_of_packs(step.strategy);
    const auto check = [&](const TaskGraph& graph) {
      return check_tasks(step.training, step.machine, strategy, graph);
    };
    const TaskGraph clean = lower(step.training, strategy, step.machine);
    EXPECT_TRUE(mutations.try_all(
        {step.training, step.machine, start, static_cast<int64_t>(clean.micro_batches.size()),
         check, [&] { return run_plainly(step.training, start); }},
        clean, seed, each));
  }
  mutations.print();
}

}  // namespace
}  // namespace windlass
