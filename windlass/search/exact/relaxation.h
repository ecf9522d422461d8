// A lower bound on a cost network by moving costs between its terms, for networks too dense to be
// eliminated.
//
// What is moved from an edge to one of its variables, or back, changes no choice's cost. The sum of
// what each term costs at least is then a bound, and moving raises it: variable by variable in
// their order, each shares what it costs out over the edges to later ones and keeps the rest, and
// an edge hands on to the later variable what it costs at least for each of its options; then the
// same from the last to the first. (Sequential tree-reweighted message passing, Kolmogorov 2006: it
// comes near to the linear relaxation.) A sweep takes two looks at each cell of each edge.
//
// All that is moved is whole, so that the bound is one in floating point too.
#pragma once

#include <chrono>
#include <vector>

#include "windlass/search/exact/cost_network.h"

namespace windlass {

struct RelaxationOptions {
  int sweeps = 400;           // at most; ends where they hardly raise the bound
  double most_cells = 1e300;  // looked at
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

struct Relaxation {
  double bound = 0;             // no choice costs less
  std::vector<int32_t> choice;  // the best that was met; not improved any further
  double cost = 0;              // of that
  // The network with its costs moved: what a choice costs in it and the bound together are what it
  // costs in the network.
  CostNetwork rest;
  double cells = 0;  // looked at
  bool out_of_time = false;
};

// The least power of two in units of which costs are small enough for all sums to be exact.
double relaxation_unit(const CostNetwork& network);
// The network with costs in such units, rounded down: what bounds it, bounds the network.
CostNetwork in_units(const CostNetwork& network, double unit);

// Of networks whose relaxation_unit() is 1. Same network and options, same result, unless the
// deadline is over before the end.
Relaxation relax(const CostNetwork& network, const RelaxationOptions& options = {});

// Of each variable the options of which some choice may cost less than `most` (of rest, so more
// than the bound); those of `choice` stay in any case.
std::vector<std::vector<int32_t>> options_below(const CostNetwork& rest, double most,
                                                const std::vector<int32_t>& choice);

}  // namespace windlass
