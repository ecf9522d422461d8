// best[l][h]: the least cost of packs that cover the layers before l, of which h bytes of inputs
// wait on the device. A pack [l, e) adds its own input and must fit beside h. Of the entries of l,
// those that cost no less than one with fewer bytes lead nowhere.
#include "windlass/search/packs/stash_partition.h"

#include <algorithm>

#include "windlass/search/packs/partition.h"

namespace windlass {
namespace {

constexpr int64_t kLevels = 64;

struct HeldEntry {
  double cost = kDoesNotFit;
  int64_t held = 0;  // bytes, exact
  int32_t from = -1;
  int32_t from_level = 0;
  bool on_host = false;
};

// An entry to go on from.
struct Start {
  double cost = 0;
  int64_t held = 0;
  int32_t level = 0;
};

}  // namespace

StashPartition min_stash_partition(const StashCosts& costs) {
  const auto width = static_cast<size_t>(kLevels) + 1;
  const int64_t unit = std::max<int64_t>(1, costs.cap / kLevels);
  std::vector<HeldEntry> best((static_cast<size_t>(costs.layers) + 1) * width);
  best[0].cost = 0;
  StashPartition result;
  std::vector<Start> starts;
  for (int32_t first = 0; first < costs.layers; ++first) {
    const HeldEntry* row = &best[static_cast<size_t>(first) * width];
    starts.clear();  // by bytes, which rise, and costs, which fall
    for (size_t level = 0; level < width; ++level)
      if (row[level].cost < (starts.empty() ? kDoesNotFit : starts.back().cost))
        starts.push_back({row[level].cost, row[level].held, static_cast<int32_t>(level)});
    if (starts.empty()) continue;
    const int64_t stash = costs.stash(first), room = costs.room(first);
    const double host_cost = costs.host_cost(first);
    for (int32_t last = first; last < costs.layers; ++last) {
      const Pack pack{first, last};
      if (costs.hopeless(pack)) break;
      const int64_t bytes = costs.bytes(pack);
      const double cost = costs.cost(pack);
      const bool loss = last + 1 == costs.layers;
      result.work += static_cast<int64_t>(starts.size()) + 1;
      const int64_t most = costs.cap - bytes;
      HeldEntry* next = &best[(static_cast<size_t>(last) + 1) * width];
      for (const Start& from : starts) {
        if (from.held > most) break;
        for (bool on_host : {false, true}) {
          if (loss && on_host) continue;
          const int64_t own = loss ? 0 : on_host ? room : stash;
          if (from.held + own > most) continue;
          const int64_t held = from.held + (loss || on_host ? 0 : stash);
          const double sum = from.cost + cost + (on_host ? host_cost : 0);
          HeldEntry& entry = next[static_cast<size_t>(held / unit)];
          if (sum < entry.cost || (sum == entry.cost && held < entry.held))
            entry = {sum, held, first, from.level, on_host};
        }
      }
    }
  }
  const HeldEntry* end = &best[static_cast<size_t>(costs.layers) * width];
  const auto least = static_cast<size_t>(
      std::min_element(end, end + width,
                       [](const HeldEntry& a, const HeldEntry& b) { return a.cost < b.cost; }) -
      end);
  if (end[least].cost == kDoesNotFit) return result;
  result.cost = end[least].cost;
  size_t level = least;
  for (int32_t l = costs.layers; l > 0;) {
    const HeldEntry& entry = best[static_cast<size_t>(l) * width + level];
    result.packs.push_back({entry.from, l - 1});
    result.on_host.push_back(entry.on_host);
    l = entry.from;
    level = static_cast<size_t>(entry.from_level);
  }
  std::ranges::reverse(result.packs);
  std::ranges::reverse(result.on_host);
  return result;
}

}  // namespace windlass
