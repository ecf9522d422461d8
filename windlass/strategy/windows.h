// What can be cut in blocks.
#pragma once

#include <cstdint>

#include "windlass/graph/op_info.h"

namespace windlass {

// Whether what an element of the loop reads and makes of each operand is its own. Otherwise a piece
// of several runs would need what lies between them: such a loop is not cut in blocks.
bool windows_tile(const LoopNest& nest, int32_t loop);

}  // namespace windlass
