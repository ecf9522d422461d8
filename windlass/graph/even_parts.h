// How something is cut into parts that are as equal as they can be: loops, axes, batches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "windlass/graph/op_info.h"

namespace windlass {

// Piece `index` of [0, size) cut into `parts`: sizes differ by at most one, larger ones first.
inline Range part_of(int64_t size, int64_t parts, int64_t index) {
  const int64_t small = size / parts, larger = size % parts;
  const int64_t begin = index * small + std::min(index, larger);
  return {begin, begin + small + (index < larger ? 1 : 0)};
}
// Size of the largest piece.
constexpr int64_t largest_part(int64_t size, int64_t parts) { return (size + parts - 1) / parts; }

}  // namespace windlass
