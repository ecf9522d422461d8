#include <random>

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/search/exact/sharding/move_prices.h"
#include "windlass/search/exact/sharding/sharding_options.h"
#include "windlass/search/exact/sharding/sharding_problem.h"
#include "windlass/task/tables.h"

namespace windlass {
namespace {

LoopNest product(int64_t m, int64_t n, int64_t k) {
  LoopNest nest;
  nest.loops = {{.name = "m", .size = m},
                {.name = "n", .size = n},
                {.name = "k", .size = k, .role = LoopRole::Reduced}};
  return nest;
}

// Of a product on 4 devices: nothing; m, n, k by 2 or by 4; two of them by 2 each.
TEST(Shardings, OfAProductOnFourDevices) {
  const auto found = shardings_of(product(64, 64, 64), {1, 1, 1}, 4);
  EXPECT_EQ(found.size(), 1U + 6 + 3);
  EXPECT_EQ(format_sharding(found[0], product(64, 64, 64)), "copy/4");
  for (const Sharding& sharding : found) EXPECT_EQ(size_of(sharding), 4);
}

TEST(Shardings, KeepToTheRules) {
  // Whole loops and short sums stay whole; 5 into 4 pieces is too uneven, 35 into 4 is not.
  LoopNest nest = product(5, 35, 9);
  for (const Sharding& sharding : shardings_of(nest, {1, 1, 1}, 4))
    for (const Split& split : sharding.splits) {
      EXPECT_NE(split.loop, 2);
      EXPECT_FALSE(split.loop == 0 && split.parts == 4);
    }
  nest.loops[1].role = LoopRole::Whole;
  for (const Sharding& sharding : shardings_of(nest, {1, 1, 1}, 4))
    for (const Split& split : sharding.splits) EXPECT_NE(split.loop, 1);
}

TEST(Shardings, RunsThatAreReadApartAreCutApart) {
  bool found = false;
  for (const Sharding& sharding : shardings_of(product(8, 48, 16), {1, 3, 1}, 4))
    for (const Split& split : sharding.splits) found = found || split.blocks == 3;
  EXPECT_TRUE(found);
}

// Rows that a window of three reads have neighbours in other runs.
TEST(Shardings, WindowsAreNotCutInRuns) {
  LoopNest nest = product(8, 48, 16);
  nest.inputs = {{{.loop = 0}, {.loop = 1, .offset = -1, .window = 3}}};
  for (const Sharding& sharding : shardings_of(nest, {1, 3, 1}, 4))
    for (const Split& split : sharding.splits) EXPECT_EQ(split.blocks, 1);
}

// The fast prices are those of the moves that lowering would make.
TEST(MovePrices, AreThoseOfTheMovesThemselves) {
  std::mt19937_64 random(1);
  const TrainingGraph training = differentiate(cases::transformer(8, 2, false));
  const TrainingFacts facts(training);
  for (const std::string name : {"4x2080ti", "8x1080ti", "8xa100-80g*2"}) {
    const Machine machine = load_machine(name);
    const auto members = static_cast<int64_t>(machine.devices.size());
    Tables tables(training, facts, machine);
    const int32_t group = tables.intern(all_devices(machine));
    MovePrices prices(machine, tables, group);
    for (int round = 0; round < 300; ++round) {
      const auto op = static_cast<size_t>(random() % training.forward_ops);
      const Op& forward = training.graph.ops[op];
      const LoopNest nest = loops_of(training.graph, forward);
      const std::vector<int32_t> blocks(nest.loops.size(), 1);
      const auto options = shardings_of(nest, blocks, members);
      const auto layout = [&](Access access) {
        const Sharding& sharding = options[random() % options.size()];
        return tables.intern(layout_of(nest, sharding, nest.outputs[0],
                                       training.graph.type_of(forward.outputs[0]).shape, access));
      };
      const TensorType& type = training.graph.type_of(forward.outputs[0]);
      const int32_t from = layout(Access::Result), to = layout(Access::ReadGradient);
      double expected = 0;
      if (from != to)
        for (const MoveTemplate& move : tables.moves(type, from, group, to, group))
          expected += std::nearbyint(
              time_alone(machine, tables.traffics[static_cast<size_t>(move.traffic)]).value * 1e9);
      EXPECT_NEAR(prices.time(type, from, to), expected, 1 + 1e-9 * expected)
          << format_layout(tables.layout(from)) << " to " << format_layout(tables.layout(to));
      EXPECT_LE(prices.least_time(type, from, to), prices.time(type, from, to) + 1);
    }
  }
}

// Ops that look alike share their options; costs are whole and not negative.
TEST(ShardingProblem, IsAProperNetwork) {
  const TrainingGraph training = differentiate(cases::transformer(8, 3, false));
  const Machine machine = load_machine("4x3090");
  const auto cost = analytic_cost_model();
  const ShardingProblem problem = make_sharding_problem(training, machine, *cost);
  EXPECT_EQ(problem.kind_of.size(), training.forward_ops);
  EXPECT_LT(problem.shardings.size(), training.forward_ops);
  for (double overlap : {0.0, 0.9}) check_network(weighted(problem.network(overlap), {}));
  for (const auto& kind : problem.choices)
    for (const auto& front : kind) {
      ASSERT_FALSE(front.empty());
      for (size_t c = 1; c < front.size(); ++c) {
        EXPECT_GE(front[c].cost.time, front[c - 1].cost.time);
        EXPECT_LT(front[c].cost.bytes, front[c - 1].cost.bytes);
      }
    }
}

// Out of time, what is not priced costs nothing: the least sum is a bound of the whole problem's.
TEST(ShardingProblem, OutOfTimeIsABound) {
  const TrainingGraph training = differentiate(cases::transformer(8, 2, false));
  const Machine machine = load_machine("4x1080ti");
  const auto cost = analytic_cost_model();
  const ShardingProblem whole = make_sharding_problem(training, machine, *cost);
  EXPECT_TRUE(whole.complete);
  int asked = 0;
  ShardingProblemOptions options;
  options.out_of_time = [&] { return ++asked > 500; };
  const ShardingProblem part = make_sharding_problem(training, machine, *cost, 1, options);
  EXPECT_FALSE(part.complete);
  const EliminationResult bound = minimise(weighted(part.network(), {}));
  const EliminationResult best = minimise(weighted(whole.network(), {}));
  EXPECT_TRUE(bound.optimal);
  EXPECT_LT(bound.cost, best.cost);
}

}  // namespace
}  // namespace windlass
