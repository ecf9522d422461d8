// Local changes to a choice: for networks too dense to be eliminated.
#pragma once

#include <chrono>
#include <vector>

#include "windlass/search/exact/cost_network.h"

namespace windlass {

// Changes one variable, or the two ends of an edge, to their best options as long as that helps or
// until the deadline; in the order of their numbers, so the result is the same every time.
void improve(const CostNetwork& network, std::vector<int32_t>& choice,
             std::chrono::steady_clock::time_point deadline);

}  // namespace windlass
