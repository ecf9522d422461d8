#include "windlass/search/exact/eliminate.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/search/exact/dead_ends.h"
#include "windlass/search/exact/elimination_order.h"
#include "windlass/search/exact/reference/brute_force.h"
#include "windlass/search/exact/relaxation.h"

namespace windlass {
namespace {

constexpr NetworkShape kShapes[] = {NetworkShape::Chain, NetworkShape::Tree,
                                    NetworkShape::SeriesParallel, NetworkShape::Skips,
                                    NetworkShape::Dense};

// Two variables: 1 + 4 + 2 = 7 for (0, 0), 1 + 0 + 5 = 6 for (0, 1), 3 + 1 + 2 = 6 for (1, 0),
// 3 + 9 + 5 = 17 for (1, 1).
TEST(Elimination, HandComputed) {
  CostNetwork network;
  network.options = {2, 2};
  network.unary = {network.tables.add({1, 3}), network.tables.add({2, 5})};
  network.add_pair(0, 1, {4, 0, 1, 9});
  check_network(network);
  const EliminationResult result = minimise(network);
  EXPECT_EQ(result.cost, 6);
  EXPECT_EQ(result.bound, 6);
  EXPECT_TRUE(result.optimal);
}

TEST(Elimination, PairsInEitherOrderAreOneEdge) {
  CostNetwork network;
  network.options = {2, 3};
  network.unary = {network.tables.add({0, 0}), network.tables.add({0, 0, 0})};
  network.add_pair(0, 1, {1, 2, 3, 4, 5, 6});
  network.add_pair(1, 0, {10, 20, 30, 40, 50, 60});
  ASSERT_EQ(network.edges.size(), 1U);
  EXPECT_EQ(network.tables[network.edges[0].table], (std::vector<double>{11, 32, 53, 24, 45, 66}));
}

TEST(Elimination, EqualsBruteForceOnRandomNetworks) {
  std::mt19937_64 random(1);
  for (int round = 0; round < sampled(4000); ++round) {
    const CostNetwork network = random_network(random, kShapes[round % 5], 3000);
    check_network(network);
    const double best = minimise_by_brute_force(network).cost;
    for (const bool dead_ends : {false, true}) {
      const EliminationResult result =
          minimise(network, {.threads = 1 + round % 2, .dead_ends = dead_ends});
      ASSERT_EQ(result.cost, best) << "round " << round;
      ASSERT_EQ(result.cost, cost_of(network, result.choice));
      ASSERT_TRUE(result.optimal);
      ASSERT_EQ(result.bound, best);
    }
  }
}

TEST(Elimination, SmallTablesGiveBounds) {
  std::mt19937_64 random(2);
  int split = 0;
  for (int round = 0; round < sampled(1000); ++round) {
    const CostNetwork network = random_network(random, kShapes[round % 5], 3000);
    const double best = minimise_by_brute_force(network).cost;
    const EliminationResult result =
        minimise(network, {.largest_table = 12, .dead_ends = round % 3 == 0});
    ASSERT_LE(result.bound, best);
    ASSERT_GE(result.cost, best);
    ASSERT_EQ(result.cost, cost_of(network, result.choice));
    ASSERT_EQ(result.optimal, result.cost == result.bound);
    split += result.optimal ? 0 : 1;
  }
  EXPECT_GT(split, sampled(10));
}

// Costs that are moved are the same costs, none of them is below zero, and options that are left
// out are in no choice that is better.
TEST(Relaxation, MovesCostsAndBoundsThem) {
  std::mt19937_64 random(7);
  int tight = 0, fewer = 0, rounds = sampled(2000);
  for (int round = 0; round < rounds; ++round) {
    const CostNetwork network = random_network(random, kShapes[round % 5], 3000);
    const BruteForceResult best = minimise_by_brute_force(network);
    ASSERT_EQ(relaxation_unit(network), 1);
    const Relaxation found = relax(network, {.sweeps = round % 40});
    ASSERT_NO_THROW(check_network(found.rest)) << "round " << round;
    ASSERT_LE(found.bound, best.cost) << "round " << round;
    ASSERT_EQ(found.cost, cost_of(network, found.choice));
    std::vector<int32_t> any;
    for (int32_t count : network.options)
      any.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(count)));
    ASSERT_EQ(found.bound + cost_of(found.rest, any), cost_of(network, any));
    const auto left = options_below(found.rest, found.cost - found.bound, found.choice);
    size_t options = 0;
    for (size_t v = 0; v < left.size(); ++v) {
      options += left[v].size();
      if (best.cost < found.cost) {
        ASSERT_TRUE(std::ranges::binary_search(left[v], best.choice[v]));
      }
      ASSERT_TRUE(std::ranges::binary_search(left[v], found.choice[v]));
    }
    tight += found.bound == best.cost;
    fewer += options < std::accumulate(network.options.begin(), network.options.end(), size_t{0});
  }
  EXPECT_GT(tight, rounds / 2);
  EXPECT_GT(fewer, rounds / 2);
}

// Costs too large for sums to be exact are rounded down: the bound stays one, and is near.
TEST(Relaxation, LargeCostsAreRounded) {
  std::mt19937_64 random(9);
  for (int round = 0; round < sampled(300); ++round) {
    const CostNetwork small = random_network(random, kShapes[round % 5], 3000);
    const CostNetwork network = in_units(small, 0x1.0p-60);
    ASSERT_GT(relaxation_unit(network), 1);
    const EliminationResult result = minimise(network, {.relax_above = 0});
    const double best = 0x1.0p60 * minimise_by_brute_force(small).cost;
    ASSERT_EQ(result.cost, best) << "round " << round;
    ASSERT_LE(result.bound, best) << "round " << round;
    ASSERT_GE(result.bound, best * (1 - 1e-9)) << "round " << round;
  }
}

TEST(Relaxation, LeavesTheOptimumAsItIs) {
  std::mt19937_64 random(8);
  for (int round = 0; round < sampled(1500); ++round) {
    const CostNetwork network = random_network(random, kShapes[round % 5], 3000);
    const EliminationResult result = minimise(network, {.relax_above = 0});
    ASSERT_EQ(result.cost, minimise_by_brute_force(network).cost) << "round " << round;
    ASSERT_EQ(result.cost, cost_of(network, result.choice));
    ASSERT_TRUE(result.optimal);
  }
}

TEST(Elimination, OrdersNameEveryVariableOnce) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const CostNetwork network = random_network(random, kShapes[round % 5], 1e6);
    for (OrderRule rule : {OrderRule::Degree, OrderRule::Fill, OrderRule::Cells}) {
      const EliminationOrder order = order_by(network, rule);
      std::vector<int32_t> sorted = order.variables;
      std::ranges::sort(sorted);
      for (size_t v = 0; v < sorted.size(); ++v) ASSERT_EQ(sorted[v], static_cast<int32_t>(v));
      ASSERT_EQ(sorted.size(), network.size());
    }
  }
}

TEST(Elimination, OneThreadAndSeveralAgree) {
  std::mt19937_64 random(4);
  CostNetwork network;
  for (int v = 0; v < 6; ++v) {
    network.options.push_back(40);
    std::vector<double> cells;
    for (int i = 0; i < 40; ++i) cells.push_back(static_cast<double>(random() % 100));
    network.unary.push_back(network.tables.add(cells));
  }
  for (int32_t a = 0; a < 6; ++a)
    for (int32_t b = a + 1; b < 6; ++b) {
      if (b - a > 3) continue;
      std::vector<double> cells;
      for (int i = 0; i < 1600; ++i) cells.push_back(static_cast<double>(random() % 100));
      network.add_pair(a, b, cells);
    }
  const EliminationResult one = minimise(network, {.threads = 1, .dead_ends = false});
  const EliminationResult four = minimise(network, {.threads = 4, .dead_ends = false});
  EXPECT_TRUE(one.optimal);
  EXPECT_EQ(one.choice, four.choice);
  EXPECT_EQ(one.cost, four.cost);
}

// Layers that repeat are worked out once.
TEST(Elimination, RepeatedLayersShareTheirTables) {
  std::mt19937_64 random(5);
  const auto cells = [&](int count) {
    std::vector<double> result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<double>(random() % 1000));
    return result;
  };
  CostNetwork network;
  const std::vector<double> unary = cells(20), first = cells(400), second = cells(400);
  constexpr int32_t kLayers = 50;
  for (int32_t v = 0; v < 2 * kLayers; ++v) {
    network.options.push_back(20);
    network.unary.push_back(network.tables.add(unary));
    if (v > 0) network.add_pair(v - 1, v, v % 2 == 0 ? first : second);
  }
  const EliminationResult result = minimise(network, {.dead_ends = false});
  EXPECT_TRUE(result.optimal);
  EXPECT_LT(result.cells_computed, result.cells / 4);
}

TEST(Elimination, NoTimeStillGivesAChoice) {
  std::mt19937_64 random(6);
  CostNetwork network;
  for (int32_t v = 0; v < 12; ++v) {
    network.options.push_back(60);
    network.unary.push_back(network.tables.add(std::vector<double>(60, 1)));
    for (int32_t u = 0; u < v; ++u) {
      std::vector<double> cells;
      for (int i = 0; i < 3600; ++i) cells.push_back(static_cast<double>(random() % 1000));
      network.add_pair(u, v, cells);
    }
  }
  const EliminationResult result = minimise(network, {.time_limit = Seconds(0)});
  EXPECT_TRUE(result.out_of_time);
  EXPECT_EQ(result.choice.size(), 12U);
  EXPECT_GE(result.cost, result.bound);
  EXPECT_FALSE(result.optimal);
}

// As above, by cells: the same whatever the number of threads, and with tables that are small.
TEST(Elimination, CellsAreALimitToo) {
  std::mt19937_64 random(6);
  CostNetwork network;
  for (int32_t v = 0; v < 9; ++v) {
    network.options.push_back(20);
    network.unary.push_back(network.tables.add(std::vector<double>(20, 1)));
    for (int32_t u = 0; u < v; ++u) {
      std::vector<double> cells;
      for (int i = 0; i < 400; ++i) cells.push_back(static_cast<double>(random() % 1000));
      network.add_pair(u, v, cells);
    }
  }
  EliminationOptions options = {.threads = 1, .largest_table = 1e8, .most_cells = 5e6};
  const EliminationResult one = minimise(network, options);
  options.threads = 3;
  const EliminationResult three = minimise(network, options);
  EXPECT_TRUE(one.out_of_cells);
  EXPECT_FALSE(one.out_of_time);
  EXPECT_LE(one.bound, one.cost);
  EXPECT_GT(one.bound, 0);
  EXPECT_LE(one.largest_table, 1 << 22);
  EXPECT_EQ(one.choice, three.choice);
  EXPECT_EQ(one.bound, three.bound);
}

TEST(DeadEnds, DuplicatesAndWorseOptionsGo) {
  CostNetwork network;
  network.options = {3, 2};
  // Option 1 equals option 0; option 2 is worse by 1 whatever the neighbour takes.
  network.unary = {network.tables.add({5, 5, 6}), network.tables.add({0, 0})};
  network.add_pair(0, 1, {1, 7, 1, 7, 1, 7});
  const ReducedNetwork reduced = remove_dead_ends(network);
  EXPECT_EQ(reduced.original[0].size(), 1U);
  EXPECT_EQ(reduced.original[1], (std::vector<int32_t>{0}));
}

TEST(CostNetwork, WcspText) {
  CostNetwork network;
  network.options = {2, 2};
  network.unary = {network.tables.add({1, 0}), network.tables.add({0, 2})};
  network.add_pair(0, 1, {4, 0, 0, 9});
  EXPECT_EQ(to_wcsp(network, "two ops"),
            "two_ops 2 2 3 13\n2 2\n1 0 0 1\n0 1\n1 1 0 1\n1 2\n2 0 1 0 2\n0 0 4\n1 1 9\n");
}

}  // namespace
}  // namespace windlass
