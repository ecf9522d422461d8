// Meeting the other processes of a run.
#pragma once

#include <memory>
#include <string>

#include "windlass/run/ranks.h"

namespace windlass {

// Returns when all ranks are there. Throws Error{Runtime} naming those that have not come in time,
// Error{Unsupported} if this runtime was built without a libtorch that knows Gloo.
std::unique_ptr<Ranks> join_ranks(const RankPlace& place);

// What Ranks::now() of rank 0 is ahead of this rank's, in seconds, and what that may be off by:
// half of the quickest of some round trips. All call it.
struct ClockReading {
  double offset = 0, error = 0;
};
ClockReading read_clock(Ranks& ranks);

// How much faster or slower than another a clock may run: crystals keep to a ten-thousandth.
inline constexpr double kClockDrift = 1e-4;

// Of what libraries say on several lines, with places in their sources before: the first line.
std::string reason_line(const char* text);

}  // namespace windlass
