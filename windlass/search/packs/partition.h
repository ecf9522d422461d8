// Optimal cuts of a chain into packs, by dynamic programming.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

constexpr double kDoesNotFit = std::numeric_limits<double>::infinity();

// What each pack of layers costs, by its last layer: packs that fit, and those between them.
class PackCosts {
 public:
  // `cost(pack)` is kDoesNotFit for packs that do not fit; `hopeless(pack)` says that neither this
  // pack nor any that begins earlier does, and must become true again at most layers() packs later.
  template <typename Cost, typename Hopeless>
  PackCosts(int32_t layers, Cost cost, Hopeless hopeless) {
    for (int32_t last = 0; last < layers; ++last) {
      for (int32_t first = last; first >= 0 && !hopeless(Pack{first, last}); --first)
        costs_.push_back(cost(Pack{first, last}));
      begin_.push_back(costs_.size());
    }
  }

  int32_t layers() const { return static_cast<int32_t>(begin_.size()) - 1; }
  // Entry k is of the pack [last - k, last].
  std::span<const double> ending_at(int32_t last) const {
    const auto at = static_cast<size_t>(last);
    return {costs_.data() + begin_[at], costs_.data() + begin_[at + 1]};
  }

 private:
  std::vector<size_t> begin_ = {0};
  std::vector<double> costs_;
};

// For each number of packs up to `most`, the partition of all layers whose largest cost is least;
// among those that the recurrence sees, the one with the least sum of squares. Entry s - 1 has s
// packs, or none if no such partition fits. Exact in the largest cost. `growing`: a pack that fits
// costs no less than a pack inside it, which saves most of the O(most x packs that fit).
std::vector<std::vector<Pack>> min_max_partitions(const PackCosts& costs, int32_t most,
                                                  bool growing);

// The partition with the least sum of costs, in any number of packs; costs may be negative. Empty
// if none fits. Exact. O(packs that fit).
std::vector<Pack> min_sum_partition(const PackCosts& costs);

}  // namespace windlass
