// A number for a strategy, to find again what is known of it.
#pragma once

#include <cstdint>

#include "windlass/strategy/strategy.h"

namespace windlass {

// Strategies of one training graph that lead to different steps have different numbers, but for
// chance. Not for packs of layers.
uint64_t strategy_hash(const Strategy& strategy);

}  // namespace windlass
