// Fewer devices than there are: a number that divides badly, or slow ones beside fast ones, may
// make a step slower than it is without some of them.
#pragma once

#include <vector>

#include "windlass/search/book/ledger.h"
#include "windlass/search/bounds/work_bound.h"

namespace windlass {

struct DeviceSubset {
  std::vector<DeviceId> devices;  // ascending
  Nanoseconds least = 0;          // what the work of a step takes on them
};

// At most kMostSubsets sets, none of them all devices, the one with the least work first. Of the
// devices in the order of their speed, those of a kind node by node: the first ones, in numbers
// that divide well, that divide the batch, that complete a kind, or that the user's decisions ask
// for. Beside them each kind alone, and nodes as a whole.
inline constexpr size_t kMostSubsets = 16;
std::vector<DeviceSubset> device_subsets(const Machine& machine, const WorkBound& bound,
                                         int64_t samples, const FixedDecisions& fixed);

// Those that may be faster than the best in the book; if nothing fits, those that may.
std::vector<DeviceSubset> promising_subsets(Ledger& ledger);

// Structures on each of them, in a book of their own, so that what is found with all devices does
// not depend on it. What takes `ceiling` or longer is left out: the best that the same search has
// found with all devices. Nothing is returned if that is never beaten.
struct SubsetOptions {
  Nanoseconds ceiling = 0;
  bool improve = false;  // by exact search and Markov chains too
};
void run_subsets(Ledger& ledger, const std::vector<DeviceSubset>& subsets,
                 const SubsetOptions& options, SearchResult& facts);

}  // namespace windlass
