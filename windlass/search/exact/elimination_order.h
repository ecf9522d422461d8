// Orders of elimination: which variable goes first decides how large the tables become.
#pragma once

#include <vector>

#include "windlass/search/exact/cost_network.h"

namespace windlass {

enum class OrderRule : uint8_t {
  Degree,  // fewest neighbours
  Fill,    // fewest new edges between its neighbours
  Cells,   // smallest table: product of the options of itself and its neighbours
};

struct EliminationOrder {
  std::vector<int32_t> variables;  // in the order they go
  double largest = 0;              // cells of the largest table, the variable that goes included
  double total = 0;                // of all tables
  size_t width = 0;                // most neighbours at the time of going
};

// Greedy: the variable with the least score goes, ties by number. O(n^2 + n w^2) for width w, with
// Fill O(n w^3).
EliminationOrder order_by(const CostNetwork& network, OrderRule rule);

// The one of all rules with the fewest cells in total.
EliminationOrder best_order(const CostNetwork& network);

}  // namespace windlass
