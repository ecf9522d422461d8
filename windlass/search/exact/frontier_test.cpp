#include "windlass/search/exact/frontier.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace windlass {
namespace {

ParetoNetwork random_network(std::mt19937_64& random) {
  const auto draw = [&](uint64_t most) { return static_cast<double>(random() % (most + 1)); };
  const uint64_t most = random() % 2 == 0 ? 5 : 1000;
  ParetoNetwork network;
  const size_t size = 1 + random() % 5;
  for (size_t v = 0; v < size; ++v) {
    ParetoNetwork::Options& kind = network.kinds.emplace_back();
    const size_t options = 1 + random() % 3;
    for (size_t o = 0; o < options; ++o) {
      auto& variants = kind.emplace_back();
      const size_t count = 1 + random() % 2;
      for (size_t k = 0; k < count; ++k) variants.push_back({draw(most), draw(most)});
    }
    network.kind_of.push_back(static_cast<int32_t>(v));
  }
  for (size_t a = 0; a < size; ++a)
    for (size_t b = a + 1; b < size; ++b) {
      if (random() % 2 == 0) continue;
      const bool turned = random() % 2 == 0;
      ParetoNetwork::Edge edge = {static_cast<int32_t>(turned ? b : a),
                                  static_cast<int32_t>(turned ? a : b),
                                  static_cast<int32_t>(network.tables.size())};
      auto& table = network.tables.emplace_back();
      for (size_t i = 0; i < network.of(a).size() * network.of(b).size(); ++i)
        table.push_back({draw(most), draw(most)});
      network.edges.push_back(edge);
    }
  return network;
}

// Every choice, and of these the front.
std::vector<TimeBytes> brute_force(const ParetoNetwork& network) {
  std::vector<TimeBytes> all;
  ParetoChoice choice;
  choice.options.assign(network.size(), 0);
  choice.variants.assign(network.size(), 0);
  for (;;) {
    all.push_back(cost_of(network, choice));
    size_t v = 0;
    for (; v < network.size(); ++v) {
      const auto o = static_cast<size_t>(choice.options[v]);
      if (static_cast<size_t>(++choice.variants[v]) < network.of(v)[o].size()) break;
      choice.variants[v] = 0;
      if (static_cast<size_t>(++choice.options[v]) < network.of(v).size()) break;
      choice.options[v] = 0;
    }
    if (v == network.size()) break;
  }
  std::ranges::sort(all);
  std::vector<TimeBytes> front;
  for (const TimeBytes& cost : all)
    if (front.empty() || cost.bytes < front.back().bytes) front.push_back(cost);
  return front;
}

std::vector<TimeBytes> costs_of(const std::vector<ParetoChoice>& choices) {
  std::vector<TimeBytes> costs;
  for (const ParetoChoice& choice : choices) costs.push_back(choice.cost);
  return costs;
}

TEST(Frontier, EqualsBruteForce) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const ParetoNetwork network = random_network(random);
    const Frontier frontier = find_frontier(network);
    ASSERT_TRUE(frontier.exact);
    ASSERT_EQ(costs_of(frontier.choices), brute_force(network)) << "round " << round;
    for (const ParetoChoice& choice : frontier.choices)
      ASSERT_EQ(choice.cost, cost_of(network, choice));
  }
}

// With coarse bytes, every true point has one that is as fast and needs at most a resolution more
// for each term.
TEST(Frontier, CoarseBytesAreRoundedUp) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    const ParetoNetwork network = random_network(random);
    constexpr double kResolution = 7;
    const Frontier frontier = find_frontier(network, {.resolution = kResolution});
    const double terms = static_cast<double>(network.size() + network.edges.size());
    for (const TimeBytes& truth : brute_force(network))
      ASSERT_TRUE(std::ranges::any_of(frontier.choices, [&](const ParetoChoice& c) {
        return c.cost.time <= truth.time && c.cost.bytes <= truth.bytes + terms * kResolution;
      }));
  }
}

TEST(Frontier, ConvexPartHasTheEndsAndLiesOnTheFrontier) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    const ParetoNetwork network = random_network(random);
    const std::vector<TimeBytes> truth = brute_force(network);
    const Frontier frontier = convex_frontier(network, {});
    const std::vector<TimeBytes> found = costs_of(frontier.choices);
    ASSERT_TRUE(frontier.optimal);
    ASSERT_EQ(found.front(), truth.front()) << "round " << round;
    ASSERT_EQ(found.back(), truth.back());
    for (const TimeBytes& cost : found) ASSERT_TRUE(std::ranges::find(truth, cost) != truth.end());
    ASSERT_TRUE(std::ranges::is_sorted(found, {}, &TimeBytes::time));
  }
}

TEST(Frontier, BudgetTooSmallGivesTheConvexPart) {
  std::mt19937_64 random(4);
  const ParetoNetwork network = random_network(random);
  const Frontier frontier = find_frontier(network, {.budget = 1});
  EXPECT_FALSE(frontier.exact);
  EXPECT_FALSE(frontier.choices.empty());
}

}  // namespace
}  // namespace windlass
