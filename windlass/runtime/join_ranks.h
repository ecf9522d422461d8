// Meeting the other processes of a run.
#pragma once

#include <memory>
#include <string>

#include "windlass/run/ranks.h"

namespace windlass {

// Returns when all ranks are there. Throws Error{Runtime} naming those that have not come in time,
// Error{Unsupported} if this runtime was built without a libtorch that knows Gloo.
std::unique_ptr<Ranks> join_ranks(const RankPlace& place);

// What the clock of rank 0 is ahead of this one's, from the quickest of some round trips. All call
// it.
double clock_offset(Ranks& ranks);

// Of what libraries say on several lines, with places in their sources before: the first line.
std::string reason_line(const char* text);

}  // namespace windlass
