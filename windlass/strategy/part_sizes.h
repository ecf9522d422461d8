// The one rule by which loops and axes are cut into parts: equal ones (graph/even_parts.h), or in
// proportion to sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "windlass/graph/even_parts.h"

namespace windlass {

// Unequal parts: `sizes` are small whole numbers that the parts are in proportion to, without a
// common divisor (reduced_sizes). A border lies where the sizes before it say, rounded down, so
// that parts are exact wherever the sum of the sizes divides `size`. No sizes: equal parts.
Range part_of(int64_t size, int64_t parts, std::span<const int32_t> sizes, int64_t index);
// Wherever this divides `size`, no border is rounded.
int64_t part_units(int64_t parts, std::span<const int32_t> sizes);
// Size of the smallest piece.
int64_t smallest_part(int64_t size, int64_t parts, std::span<const int32_t> sizes);
// Sizes that say the same without a common divisor; none if all are equal.
std::vector<int32_t> reduced_sizes(std::vector<int32_t> sizes);
// What is wrong with the sizes of so many parts; empty if nothing is.
std::string check_sizes(int64_t parts, std::span<const int32_t> sizes);
constexpr int64_t kMostSizes = 1 << 20;  // that they may sum up to
// "4", or where parts are unequal "2:1:1".
std::string format_parts(int64_t parts, std::span<const int32_t> sizes);

}  // namespace windlass
