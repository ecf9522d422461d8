// best[s][j] = min over i < j of max(best[s - 1][i], cost(i .. j - 1)), best[0][0] = 0: the usual
// recurrence for cutting a chain, over packs that fit only. Exact.
#include "windlass/search/packs/partition.h"

#include <algorithm>

namespace windlass {
namespace {

struct PartitionCell {
  double largest = kDoesNotFit;
  double squares = 0;
  int32_t from = -1;
};

std::vector<Pack> trace(int32_t layers, const std::function<int32_t(int32_t end)>& from) {
  std::vector<Pack> packs;
  for (int32_t end = layers; end > 0;) {
    const int32_t first = from(end);
    packs.push_back({first, end - 1});
    end = first;
  }
  std::ranges::reverse(packs);
  return packs;
}

}  // namespace

std::vector<std::vector<Pack>> min_max_partitions(const PackCosts& costs, int32_t most,
                                                  bool growing) {
  const int32_t layers = costs.layers();
  most = std::min(most, layers);
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<PartitionCell> best(width * (static_cast<size_t>(std::max(most, 0)) + 1));
  best[0].largest = 0;
  std::vector<std::vector<Pack>> result;
  for (int32_t s = 1; s <= most; ++s) {
    const PartitionCell* before = &best[width * static_cast<size_t>(s - 1)];
    PartitionCell* now = &best[width * static_cast<size_t>(s)];
    for (int32_t end = s; end <= layers; ++end) {
      PartitionCell entry;
      const std::span<const double> row = costs.ending_at(end - 1);
      for (size_t k = 0; k < row.size(); ++k) {
        if (growing && row[k] > entry.largest && row[k] != kDoesNotFit) break;
        const int32_t first = end - 1 - static_cast<int32_t>(k);
        const PartitionCell& rest = before[first];
        const double largest = std::max(row[k], rest.largest);
        if (largest == kDoesNotFit || largest > entry.largest) continue;
        const double squares = rest.squares + row[k] * row[k];
        if (largest < entry.largest || squares < entry.squares) entry = {largest, squares, first};
      }
      now[end] = entry;
    }
    result.emplace_back();
    if (now[layers].largest == kDoesNotFit) continue;
    int32_t count = s;
    result.back() = trace(layers, [&](int32_t end) {
      return best[width * static_cast<size_t>(count--) + static_cast<size_t>(end)].from;
    });
  }
  return result;
}

std::vector<Pack> min_sum_partition(const PackCosts& costs) {
  const int32_t layers = costs.layers();
  std::vector<double> best(static_cast<size_t>(layers) + 1, kDoesNotFit);
  std::vector<int32_t> from(best.size(), -1);
  best[0] = 0;
  for (int32_t end = 1; end <= layers; ++end) {
    const std::span<const double> row = costs.ending_at(end - 1);
    const auto at = static_cast<size_t>(end);
    for (size_t k = 0; k < row.size(); ++k) {
      const double sum = best[at - 1 - k] + row[k];
      if (sum < best[at]) {
        best[at] = sum;
        from[at] = end - 1 - static_cast<int32_t>(k);
      }
    }
  }
  if (best.back() == kDoesNotFit) return {};
  return trace(layers, [&](int32_t end) { return from[static_cast<size_t>(end)]; });
}

}  // namespace windlass
