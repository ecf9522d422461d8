// Strategies that are worth keeping: none is both slower and moves more than another.
#pragma once

#include <vector>

#include "windlass/search/packs/stream_pricer.h"

namespace windlass {

class StreamFront {
 public:
  struct Entry {
    PackStrategy strategy;
    StreamCost cost;
    int64_t swapped = 0;
  };

  // Keeps a strategy that fits, unless another is as fast and moves no more.
  void add(const PackStrategy& strategy, const StreamCost& cost);
  // Of its entries.
  void remove(const Entry& entry) { entries_.erase(entries_.begin() + (&entry - entries_.data())); }

  bool empty() const { return entries_.empty(); }
  // By time, and so by traffic, which falls.
  const std::vector<Entry>& entries() const { return entries_; }
  // The fastest of those that move at most so much, and the one that moves least of those that take
  // at most so long. Null if there is none.
  const Entry* fastest(int64_t most_swapped) const;
  const Entry* least_swapped(double most_seconds) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace windlass
