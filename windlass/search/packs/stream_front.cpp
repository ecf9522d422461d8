#include "windlass/search/packs/stream_front.h"

#include <algorithm>

namespace windlass {
namespace {

double seconds_of(const StreamFront::Entry& entry) { return entry.cost.seconds; }

}  // namespace

void StreamFront::add(const PackStrategy& strategy, const StreamCost& cost) {
  if (!cost.fits) return;
  const int64_t swapped = cost.volume.swapped();
  // The slowest of those that are as fast moves least of them.
  auto place = std::ranges::upper_bound(entries_, cost.seconds, {}, seconds_of);
  if (place != entries_.begin() && std::prev(place)->swapped <= swapped) return;
  if (place != entries_.begin() && std::prev(place)->cost.seconds == cost.seconds) --place;
  auto end = place;
  while (end != entries_.end() && end->swapped >= swapped) ++end;
  place = entries_.erase(place, end);
  entries_.insert(place, {strategy, cost, swapped});
}

const StreamFront::Entry* StreamFront::fastest(int64_t most_swapped) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.swapped <= most_swapped; });
  return found == entries_.end() ? nullptr : &*found;
}

const StreamFront::Entry* StreamFront::least_swapped(double most_seconds) const {
  const auto after = std::ranges::upper_bound(entries_, most_seconds, {}, seconds_of);
  return after == entries_.begin() ? nullptr : &*std::prev(after);
}

}  // namespace windlass
