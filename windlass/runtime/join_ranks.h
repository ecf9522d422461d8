// Meeting the other processes of a run.
#pragma once

#include <memory>

#include "windlass/run/ranks.h"

namespace windlass {

// Returns when all ranks are there. Throws Error{Runtime} naming those that have not come in time,
// Error{Unsupported} if this runtime was built without a libtorch that knows Gloo.
std::unique_ptr<Ranks> join_ranks(const RankPlace& place);

}  // namespace windlass
