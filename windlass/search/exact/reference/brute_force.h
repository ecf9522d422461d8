// The slow reference of elimination: every choice is tried. And random networks to compare on.
#pragma once

#include <random>

#include "windlass/search/exact/cost_network.h"

namespace windlass {

struct BruteForceResult {
  std::vector<int32_t> choice;
  double cost = 0;
};
BruteForceResult minimise_by_brute_force(const CostNetwork& network);

enum class NetworkShape : uint8_t { Chain, Tree, SeriesParallel, Skips, Dense };

// At most `choices` joint choices. Some tables and options are repeated, some costs equal.
CostNetwork random_network(std::mt19937_64& random, NetworkShape shape, double choices);

}  // namespace windlass
