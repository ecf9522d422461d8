// Options that some optimum does without, found before anything is eliminated.
//
// Option c of a variable is a dead end if another option a is at least as good whatever the
// neighbours take (Goldstein's test):
//   unary[a] - unary[c] + sum over edges of max over j of (pair[a, j] - pair[c, j]) <= 0
// where j runs over the options of the neighbour that are left. Proof that the optimum survives:
// take an optimum that uses c and put a in its place; every term changes by no more than the test
// sums up, so the cost does not grow. Options that are removed at the same time in several
// variables are replaced one variable after the other, each time against options that were left at
// the start of the round; inside of a variable an option is only removed for one that is left.
//
// Repeated to a fixed point. Variables that look alike (same tables, same options left around them)
// are tested once. O(sum of options^2 x edges x neighbour's options) for each round at worst; most
// pairs fail a test on row sums first.
#pragma once

#include <vector>

#include "windlass/search/exact/cost_network.h"

namespace windlass {

// A network with some options left out, and which they were in the network it was made from.
struct ReducedNetwork {
  CostNetwork network;
  std::vector<std::vector<int32_t>> original;  // by variable and option
};

ReducedNetwork remove_dead_ends(const CostNetwork& network);

// Those options only; ascending, at least one of each variable.
ReducedNetwork restrict_options(const CostNetwork& network,
                                const std::vector<std::vector<int32_t>>& left);

}  // namespace windlass
