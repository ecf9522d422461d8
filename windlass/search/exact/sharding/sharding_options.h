// The ways to split an op over a group of devices that the exact search considers.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/op_info.h"
#include "windlass/strategy/layout.h"

namespace windlass {

// Runs that a loop of an op is better cut into, one piece of each run to a device, because somebody
// downstream reads the runs apart: queries, keys and values side by side. By op and loop; 1: none.
std::vector<std::vector<int32_t>> block_hints(const Graph& graph, size_t forward_ops);

// Shardings of an op over `devices`: each loop that can be split is cut into a divisor of the
// number of devices; what is left over does the same work on copies. Pieces may be uneven as long
// as the largest is at most a quarter above the mean; sums over fewer than 16 terms (the window of
// a convolution) are not split. Digits are in the order of the loops, copies innermost, so that
// each part lies on a contiguous run of devices. At most three loops are split, and three only
// without copies; two where three would give more than 160 shardings. The first one splits nothing.
std::vector<Sharding> shardings_of(const LoopNest& nest, const std::vector<int32_t>& blocks,
                                   int64_t devices);

}  // namespace windlass
