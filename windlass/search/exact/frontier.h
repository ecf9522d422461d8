// The whole trade of time against memory: the same elimination as in eliminate.h, with a Pareto
// list of (time, bytes) in each cell instead of one number, so that one solve answers every limit.
//
// Bytes are rounded up to a resolution before anything is added, so that lists stay short: a point
// never claims less than its bytes, and with n terms at most n times the resolution more. At
// resolution 1 the list is exactly the set of all choices that no other choice beats in both.
//
// Where lists would grow beyond a budget, the convex part of the frontier is found instead: choices
// that are best for time + price x bytes at some price, by exact elimination for one price after
// another. Between two neighbours of it, no choice lies below the line that joins them; so the gap
// is known for every limit.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/exact/eliminate.h"

namespace windlass {

// A point of time and memory.
struct TimeBytes {
  double time = 0;
  double bytes = 0;
  auto operator<=>(const TimeBytes&) const = default;
};

// What options of two variables cost that do not go together: more than any other sum.
inline constexpr TimeBytes kNeverCost = {0x1p60, 0x1p60};
inline bool is_never(const TimeBytes& cost) { return cost.time >= kNeverCost.time; }

// A network of two costs. Each option of a variable comes with variants, which nobody else sees.
// Costs are whole numbers, not negative; of pairs, kNeverCost says that they do not go together.
// Some choice has no such pair, and so have all that are found.
struct ParetoNetwork {
  using Options = std::vector<std::vector<TimeBytes>>;  // by option: variants
  struct Edge {
    int32_t a = 0, b = 0;
    int32_t table = -1;
  };
  std::vector<Options> kinds;
  std::vector<int32_t> kind_of;                // by variable
  std::vector<Edge> edges;                     // any order of a and b, each pair once
  std::vector<std::vector<TimeBytes>> tables;  // [options of a][options of b]

  size_t size() const { return kind_of.size(); }
  const Options& of(size_t variable) const { return kinds[static_cast<size_t>(kind_of[variable])]; }
};

struct ParetoChoice {
  TimeBytes cost;                          // exact, not rounded
  std::vector<int32_t> options, variants;  // by variable
};

TimeBytes cost_of(const ParetoNetwork& network, const ParetoChoice& choice);

// What a nanosecond and a byte count for.
struct Weights {
  double time = 1, bytes = 0;
};
// Weighted sums, rounded to whole numbers, the best variant of each option taken.
CostNetwork weighted(const ParetoNetwork& network, const Weights& weights);
// The choice of options with its best variants.
ParetoChoice with_variants(const ParetoNetwork& network, std::vector<int32_t> options,
                           const Weights& weights);

struct FrontierOptions {
  double resolution = 1;                // bytes
  double budget = 2e8;                  // sums of list entries that are formed before it gives up
  EliminationOptions elimination = {};  // for single prices
  size_t most_prices = 24;
};

struct Frontier {
  std::vector<ParetoChoice> choices;  // time ascending, bytes descending
  bool exact = false;                 // all of it, up to the resolution; else the convex part
  bool optimal = false;               // the single prices were solved to the end
  double resolution = 1;
};

// From the fastest choice (of these, the one that needs least) to the one that needs least (of
// these, the fastest).
Frontier find_frontier(const ParetoNetwork& network, const FrontierOptions& options = {});
// Its parts: nothing if the budget does not suffice; the convex part.
std::vector<ParetoChoice> exact_frontier(const ParetoNetwork& network,
                                         const FrontierOptions& options);
Frontier convex_frontier(const ParetoNetwork& network, const FrontierOptions& options);

}  // namespace windlass
