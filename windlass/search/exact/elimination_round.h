// One elimination of all variables of a cost network, with tables up to a size: exact if none has
// to be split (eliminate.h).
#pragma once

#include <chrono>
#include <functional>

#include "windlass/search/exact/eliminate.h"
#include "windlass/search/exact/elimination_order.h"

namespace windlass {

// Thrown by a round that does not come to its end.
struct OutOfTime {};
struct OutOfCells {};

struct RoundLimits {
  double largest_table = 0;  // cells; larger ones are split
  double cells = 0;          // of all tables that are worked out
  std::chrono::steady_clock::time_point deadline;
};

struct EliminationRound {
  std::vector<int32_t> choice;  // read backwards; the optimum if the round is exact
  double bound = 0;
  bool exact = true;
  double largest_table = 0, cells = 0, cells_computed = 0;
  Bytes message_bytes;
};

// Throws OutOfTime, OutOfCells. `progress` is told the share of the cells that is done.
EliminationRound eliminate_round(const CostNetwork& network, const EliminationOrder& order,
                                 const EliminationOptions& options, const RoundLimits& limits,
                                 const std::function<void(double)>& progress);

}  // namespace windlass
