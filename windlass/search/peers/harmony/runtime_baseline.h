// Harmony's own plans under windlass's simulator: the baseline of streamed packs.
#pragma once

#include <optional>

#include "windlass/search/packs/stream_pricer.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// The fastest of the plans that Harmony's own search finds for its runtime, under smaller and
// smaller caps until one fits the pricer's limit. Nothing if none does.
std::optional<StreamCost> harmony_that_fits(ChainTables& chain, StreamPricer& pricer,
                                            HarmonyMode mode, int32_t devices, int64_t minibatch,
                                            int64_t limit);

}  // namespace windlass
