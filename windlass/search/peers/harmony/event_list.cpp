#include "windlass/search/peers/harmony/event_list.h"

#include <algorithm>
#include <limits>
#include <set>

namespace windlass {

void EventList::add(Event event) {
  index_[event.name] = events_.size();
  streams_[{event.device, event.stream}].push_back(events_.size());
  events_.push_back(std::move(event));
}

bool EventList::ready(size_t event, double& begin) const {
  for (const Name& name : events_[event].waits) {
    const auto found = index_.find(name);
    if (found == index_.end()) continue;
    if (ends_[found->second] < 0) return false;
    begin = std::max(begin, ends_[found->second]);
  }
  return true;
}

double EventList::dispatch() {
  ends_.assign(events_.size(), -1);
  std::map<std::pair<int, Stream>, size_t> heads;
  std::map<std::pair<int, Stream>, double> free_at;
  size_t done = 0;
  double latest = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [key, list] : streams_) {
      if (heads[key] == list.size()) continue;
      const size_t event = list[heads[key]];
      double begin = free_at[key];
      if (!ready(event, begin)) continue;
      std::pair<int, Stream> other = key;
      if (events_[event].twin.task >= 0) {
        const size_t twin = index_.at(events_[event].twin);
        other = {events_[twin].device, events_[twin].stream};
        begin = std::max(begin, free_at[other]);
        if (heads[other] == streams_[other].size() || streams_[other][heads[other]] != twin ||
            !ready(twin, begin))
          continue;
        ends_[twin] = begin + events_[twin].seconds;
      }
      ends_[event] = begin + events_[event].seconds;
      for (const auto& stream : std::set{key, other}) {
        free_at[stream] = ends_[event];
        ++heads[stream];
        ++done;
      }
      latest = std::max(latest, ends_[event]);
      moved = true;
    }
  }
  return done == events_.size() ? latest : std::numeric_limits<double>::infinity();
}

}  // namespace windlass
