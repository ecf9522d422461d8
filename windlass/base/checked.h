// Integer arithmetic on sizes that come from files: overflow is an input error, never a wrong
// number.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "windlass/base/error.h"

namespace windlass {

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result))
    fail_input("size overflows 64 bits: {} + {}; the dimensions are not plausible", a, b);
  return result;
}

inline int64_t checked_sub(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result))
    fail_input("size overflows 64 bits: {} - {}; the dimensions are not plausible", a, b);
  return result;
}

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    fail_input("size overflows 64 bits: {} x {}; the dimensions are not plausible", a, b);
  return result;
}

inline int64_t checked_product(std::span<const int64_t> values) {
  int64_t result = 1;
  for (int64_t value : values) result = checked_mul(result, value);
  return result;
}

// The whole number that `value` stands for, its fraction cut off. Open ends are written as the
// largest or smallest 64-bit number, so values beyond those are taken as them. Throws Error{Input}
// on NaN.
inline int64_t checked_int(double value) {
  if (std::isnan(value)) fail_input("a value is not a number, expected an integer");
  if (value >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (value < -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

// Smallest integer not below a / b, for a >= 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace windlass
