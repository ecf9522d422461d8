#include "windlass/search/exact/reference/brute_force.h"

#include <algorithm>

namespace windlass {
namespace {

int64_t draw(std::mt19937_64& random, int64_t least, int64_t largest) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(largest - least + 1));
}

std::vector<std::pair<int32_t, int32_t>> edges_of(std::mt19937_64& random, NetworkShape shape,
                                                  int32_t size) {
  std::vector<std::pair<int32_t, int32_t>> edges;
  const auto add = [&](int32_t a, int32_t b) {
    if (a != b) edges.emplace_back(std::min(a, b), std::max(a, b));
  };
  for (int32_t v = 1; v < size; ++v) switch (shape) {
      case NetworkShape::Chain: add(v - 1, v); break;
      case NetworkShape::Tree: add(static_cast<int32_t>(draw(random, 0, v - 1)), v); break;
      case NetworkShape::SeriesParallel:
        // Branches that part and join again after two or three steps.
        add(v - 1, v);
        if (v % 3 == 2) add(v - 2, v);
        break;
      case NetworkShape::Skips:
        add(v - 1, v);
        if (v >= 2 && draw(random, 0, 1) == 1) add(static_cast<int32_t>(draw(random, 0, v - 2)), v);
        break;
      case NetworkShape::Dense:
        for (int32_t u = 0; u < v; ++u)
          if (draw(random, 0, 3) > 0) add(u, v);
        break;
    }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

}  // namespace

BruteForceResult minimise_by_brute_force(const CostNetwork& network) {
  BruteForceResult best;
  std::vector<int32_t> choice(network.size(), 0);
  best.choice = choice;
  best.cost = cost_of(network, choice);
  for (;;) {
    size_t v = 0;
    while (v < choice.size() && ++choice[v] == network.options[v]) choice[v++] = 0;
    if (v == choice.size()) return best;
    const double cost = cost_of(network, choice);
    if (cost < best.cost) best = {choice, cost};
  }
}

CostNetwork random_network(std::mt19937_64& random, NetworkShape shape, double choices) {
  CostNetwork network;
  double product = 1;
  for (;;) {
    const auto count = static_cast<int32_t>(draw(random, 1, 5));
    if (product * count > choices || network.options.size() > 12) break;
    product *= count;
    network.options.push_back(count);
  }
  // Few different costs make ties and dead ends likely.
  const int64_t largest = draw(random, 0, 1) == 0 ? 3 : 1000000;
  const auto cells = [&](int64_t count) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i)
      result.push_back(static_cast<double>(draw(random, 0, largest)));
    return result;
  };
  std::map<int64_t, std::vector<double>> repeated;  // by size
  const auto some_cells = [&](int64_t count) {
    const auto [known, fresh] = repeated.try_emplace(count);
    if (fresh || draw(random, 0, 2) == 0) known->second = cells(count);
    return known->second;
  };
  for (int32_t count : network.options)
    network.unary.push_back(network.tables.add(some_cells(count)));
  for (const auto& [a, b] : edges_of(random, shape, static_cast<int32_t>(network.options.size())))
    network.add_pair(a, b,
                     some_cells(int64_t{network.options[static_cast<size_t>(a)]} *
                                network.options[static_cast<size_t>(b)]));
  return network;
}

}  // namespace windlass
