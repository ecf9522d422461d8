// What a schedule of a chain costs, found by following it step by step. Shares nothing with the
// solver but the meaning of the steps.
#pragma once

#include <optional>
#include <vector>

#include "windlass/search/chain/chain.h"

namespace windlass {

// None if the schedule cannot be carried out: a block is run without its input, a backward pass is
// missing or out of order, or more waits for the copy engine than may.
std::optional<ChainCost> cost_of_schedule(const Chain& chain, const std::vector<ChainStep>& steps);

}  // namespace windlass
