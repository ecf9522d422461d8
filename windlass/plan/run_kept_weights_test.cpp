// Weights that ops read in parts that overlap or leave gaps are kept whole, each element in one
// place or in copies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

void expect_clean_step(const TrainingGraph& training, const Machine& machine,
                       const Strategy& strategy, uint64_t seed) {
  const StepStart start =
      cases::random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  expect_same_end(
      training,
      [&] {
        check_strategy(training, machine, strategy);
        const TaskGraph tasks = lower(training, strategy, machine);
        EXPECT_THAT(check_tasks(training, machine, strategy, tasks), testing::IsEmpty());
        for (const Buffer& buffer : tasks.buffers) {
          if (buffer.kind != BufferKind::Weight || !buffer.at_end) continue;
          EXPECT_FALSE(tasks.layouts[static_cast<size_t>(buffer.layout)].halo())
              << training.graph[buffer.tensor].name;
        }
        return run_tasks(training, machine, tasks, start);
      },
      run_plainly(training, start));
}

size_t op_called(const TrainingGraph& training, const std::string& name) {
  const auto& ops = training.graph.ops;
  return static_cast<size_t>(std::ranges::find(ops, name, &Op::name) - ops.begin());
}

// Rows of a table that is longer than the sequence: nobody reads the last ones.
TEST(KeptWeights, RowsThatAreSplit) {
  const Machine machine = cases::machine(4);
  const TrainingGraph training = differentiate(cases::positions(), {.clip_norm = 0.05});
  for (const char* op : {"rows", "windows", "sparse"})
    for (const Sharding& sharding :
         {Sharding{{{0, 2}, {-1, 2}}}, Sharding{{{-1, 2}, {0, 2}}}, Sharding{{{0, 4}}},
          Sharding{{{0, 2}, {1, 2}}}, Sharding{{{0, 2, 1, {1, 3}}, {1, 2}}}, Sharding{{{2, 4}}},
          Sharding{{{3, 2}, {2, 2}}}}) {
      const size_t at = op_called(training, op);
      ASSERT_LT(at, training.forward_ops);
      const LoopNest nest = loops_of(training.graph, training.graph.ops[at]);
      if (!cases::splits(training.graph.ops[at], nest, sharding, 4)) continue;
      for (const Residency& residency :
           {Residency{}, Residency{.zero = 1}, Residency{.zero = 3}, Residency{.host = true},
            Residency{.zero = 2, .host_update = true}}) {
        SCOPED_TRACE(fmt::format("{}: {}, ZeRO {}, host {} {}", op, format_sharding(sharding, nest),
                                 residency.zero, residency.host, residency.host_update));
        Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
        strategy.groups = {{}};
        for (size_t d = 0; d < 4; ++d) strategy.groups[0].emplace_back(d);
        strategy.micro_batches = 2;
        strategy.shardings = {{{{-1, 4}}}, sharding};
        strategy.ops[at] = 1;
        for (Residency& weight : strategy.weights) weight = residency;
        expect_clean_step(training, machine, strategy, 1);
      }
    }
}

// The first rows of a table are no runs of it.
TEST(KeptWeights, RowsAreNotCutInBlocks) {
  const TrainingGraph training = differentiate(cases::positions());
  const Op& op = training.graph.ops[op_called(training, "rows")];
  const LoopNest nest = loops_of(training.graph, op);
  EXPECT_FALSE(cases::splits(op, nest, {{{0, 2, 2}}}, 2));
  EXPECT_TRUE(cases::splits(op, nest, {{{1, 2, 2}}}, 2));
}

TEST(KeptWeights, RandomStrategies) {
  const uint64_t count = sampled<uint64_t>(300);
  for (uint64_t seed = 1; seed <= count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Machine machine = cases::machine(static_cast<int>(rng.integer(2, 4)));
    TrainingOptions options;
    if (rng.chance(0.3)) options.clip_norm = 0.1;
    const TrainingGraph training = differentiate(cases::positions(rng.integer(2, 4)), options);
    const Strategy strategy = cases::random_strategy(
        training, machine, rng,
        {.in_turn = true, .blocks = true, .unequal = rng.chance(0.3), .mixed = rng.chance(0.5)});
    expect_clean_step(training, machine, strategy, seed);
  }
}

}  // namespace
}  // namespace windlass
