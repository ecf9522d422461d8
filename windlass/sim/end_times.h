// When each lane is next due, and which is due first: a tournament tree over a fixed number of
// slots. set() takes log2(slots) steps without branches on data.
//
// Time and slot share 64 bits: with up to 4096 lanes, times up to 2^51 ns, 26 days.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "windlass/base/error.h"

namespace windlass {

class EndTimes {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void reset(size_t slots) {
    const size_t leaves = std::bit_ceil(std::max<size_t>(slots, 1));
    bits_ = std::countr_zero(leaves);
    latest_ = (kNever - static_cast<int64_t>(leaves)) >> bits_;
    nodes_.assign(2 * leaves, kNever);
  }

  // Throws Error{Unsupported} if the time is out of range.
  void set(size_t slot, int64_t time) { put(slot, key(slot, time)); }
  void clear(size_t slot) { put(slot, kNever); }

  bool empty() const { return nodes_[1] == kNever; }
  // kNever if it is not due.
  int64_t time(size_t slot) const {
    const int64_t node = nodes_[leaf(slot)];
    return node == kNever ? kNever : node >> bits_;
  }
  // The least time, and the lowest slot of those due then. Not if it is empty.
  int64_t time() const { return nodes_[1] >> bits_; }
  uint32_t slot() const { return static_cast<uint32_t>(nodes_[1] & ((int64_t{1} << bits_) - 1)); }

 private:
  size_t leaf(size_t slot) const { return (size_t{1} << bits_) + slot; }
  int64_t key(size_t slot, int64_t time) const {
    if (time > latest_) fail_unsupported("the step takes longer than the simulator can count");
    return time << bits_ | static_cast<int64_t>(slot);
  }
  void put(size_t slot, int64_t least) {
    int64_t* const nodes = nodes_.data();
    size_t at = leaf(slot);
    nodes[at] = least;
    for (; at > 1; at >>= 1) {
      const int64_t other = nodes[at ^ 1];
      least = other < least ? other : least;
      if (nodes[at >> 1] == least) return;
      nodes[at >> 1] = least;
    }
  }

  int bits_ = 0;
  int64_t latest_ = 0;
  std::vector<int64_t> nodes_;  // the second half leaves, before them each the lesser of two
};

}  // namespace windlass
