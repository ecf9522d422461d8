// How fast the processes of a run talk to each other: measured over what carries their messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/base/units.h"
#include "windlass/run/ranks.h"

namespace windlass {

// Between two ranks, with others at work between themselves.
struct PairLink {
  int32_t a = 0, b = 0;
  BytesPerSecond bandwidth;  // from a to b
  Seconds latency;           // of a short message, one way
};

// What one rank gets while all send to the next one and receive from the one before.
struct RingRate {
  int32_t rank = 0;
  BytesPerSecond bandwidth;
};

struct RankLinks {
  std::vector<PairLink> pairs;
  std::vector<RingRate> ring;  // in the order of the ranks that were measured

  // Of the connection of a rank: what the quickest of its pairs has, as a slow peer is the peer's
  // affair; less where all together get less than their pairs had, as behind a switch that is too
  // narrow.
  BytesPerSecond bandwidth_of(int32_t rank) const;
  // The least of its pairs'.
  Seconds latency_of(int32_t rank) const;
};

// Measures between `members` (ranks, ascending); all ranks call it, with the same, and get the same
// figures. In rounds of pairs that have no rank in common, at most kMostLinkRounds of them: with no
// more ranks than that, every pair is measured. Of each pair the median of many short messages and
// of some long ones, as long as the link allows within a fraction of a second. Times are by
// Ranks::now(). A pair that hears nothing of each other for `time_out` seconds ends it on all ranks
// with Error{Runtime} naming both.
inline constexpr size_t kMostLinkRounds = 16;
RankLinks measure_rank_links(Ranks& ranks, const std::vector<int32_t>& members, double time_out);

// Who meets whom: by round, pairs of places below `count`, so that in `count` - 1 rounds (one more
// if it is odd) each place meets every other once.
std::vector<std::vector<std::pair<size_t, size_t>>> pair_rounds(size_t count, size_t most);

}  // namespace windlass
