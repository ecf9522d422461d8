// Min-sum variable elimination: the exact optimum of a cost network, or bounds on it.
//
// A variable that goes leaves a message to its neighbours: for each of their choices, the least
// cost of everything that hangs on it. The last ones leave numbers, whose sum is the optimum.
// Walked backwards, each variable takes the option that its message was the minimum of. A table has
// a cell for each joint choice of a variable and its neighbours at the time it goes; time and
// memory are the sum of these, which the order keeps small. (This is bucket elimination, Dechter
// 1999; PaSE, Elango 2021, is it with the min-degree order.)
//
//  - Dead ends are removed first; see dead_ends.h.
//  - Tables with the same content are one, and what was worked out for some tables is not worked
//    out again: layers that repeat are solved once. Messages are shifted to have the minimum 0, so
//    that those of repeated layers become equal.
//  - The minimum runs along a neighbour's options in vector registers. Threads share the rest.
//  - Where tables would be very large, costs are moved between terms first, for a bound and to
//  leave
//    out options with which no choice is better than the best that is known; see relaxation.h.
//  - Where a table would be larger than allowed, its terms are shared out over several smaller
//    tables that are minimised apart (mini-buckets): the result is then a lower bound. The choice
//    read backwards is improved by local changes, and the gap is stated. Limits start small and
//    grow, so that there is an answer early; the last round is exact if it can be.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "windlass/base/units.h"
#include "windlass/search/exact/cost_network.h"

namespace windlass {

struct EliminationOptions {
  int threads = 0;                 // 0: all cores
  Seconds time_limit{60};          // after which the best so far is returned
  Bytes memory{int64_t{1} << 30};  // of all messages together; larger tables are split
  double largest_table = 4e10;     // cells; larger ones are split
  // Of all tables of all rounds together; a round that would need more is given up.
  double most_cells = std::numeric_limits<double>::infinity();
  bool dead_ends = true;         // remove them first
  double relax_above = 1 << 26;  // cells of the largest table: larger ones are relaxed first
  // Called now and then with the share of the work of this round that is done, and the best cost
  // and bound so far (infinite and 0 if none).
  std::function<void(double done, double best, double bound)> progress = {};
};

struct EliminationResult {
  std::vector<int32_t> choice;  // by variable
  double cost = 0;              // of the choice
  double bound = 0;             // no choice costs less
  bool optimal = false;         // cost == bound

  bool out_of_time = false;
  bool out_of_cells = false;
  int64_t options = 0, options_left = 0;  // before and after dead ends
  double largest_table = 0;               // cells, of the round that gave the bound
  double cells = 0;                       // of all tables of that round
  double cells_computed = 0;              // of these, not found already
  Bytes message_bytes;
  double gap() const { return cost > 0 ? (cost - bound) / cost : 0; }
};

// Same network and options, same result, whatever the number of threads, unless time runs out
// (cells may).
EliminationResult minimise(const CostNetwork& network, const EliminationOptions& options = {});

}  // namespace windlass
