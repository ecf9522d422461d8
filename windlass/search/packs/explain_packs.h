// Why a plan of packs is as it is: where its time and memory go, and what other choices would take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/search/packs/stream_pricer.h"

namespace windlass {

// Choices that make no difference or cannot be are left out; lists have at most `top` entries.
// The strategy must be one for the chain, the machine and the minibatch (check_pack_strategy).
// Throws Error{Input} if its window for weights cannot hold a pack.
PackExplanation explain_packs(ChainTables& chain, const Machine& machine, int64_t minibatch,
                              const PackStrategy& strategy, size_t top);

}  // namespace windlass
