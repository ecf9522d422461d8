// Values of one element type as another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "windlass/graph/dtype.h"

namespace windlass {

// The 16-bit floating-point number nearest to `value`, ties to even; beyond the largest: infinity.
uint16_t to_fp16(double value);
uint16_t to_bf16(double value);
double from_fp16(uint16_t bits);
double from_bf16(uint16_t bits);

// Turns little-endian elements into others; both spans hold the same number of them. Floating-point
// types are rounded to nearest once, from the stored value; whole numbers and truth values become
// I64; all other types must be equal. Throws Error{Unsupported} if they are not.
void convert_values(std::span<const std::byte> from, DType from_type, std::span<std::byte> to,
                    DType to_type);
// Numbers that fit a type, as elements of it.
void store_values(std::span<const double> values, DType as, std::span<std::byte> out);

}  // namespace windlass
