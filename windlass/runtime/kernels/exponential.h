// The exponential function in a form that compilers turn into vector code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {

// e^x to within 2 units in the last place for x <= 0 (below -87.3, where e^x leaves the normal
// numbers, 0; NaN for NaN): x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor polynomial, 2^n
// by its exponent bits.
WINDLASS_INLINE inline float exp_negative(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted = bounded * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  float r = bounded - n * 0.693359375f;  // ln 2 in two parts
  r = r - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

WINDLASS_INLINE inline double exp_negative(double x) { return std::exp(x); }

// The greatest of n values, -infinity if there is none; NaN is passed over. Lanes are kept apart by
// hand: compilers do not split a maximum that must mind NaN.
template <class T, class E>
WINDLASS_INLINE inline T greatest_of(const E* x, int64_t n) {
  constexpr int64_t kLanes = 32;
  T lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = -std::numeric_limits<T>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      const T value = static_cast<T>(x[i + l]);
      lanes[l] = value > lanes[l] ? value : lanes[l];
    }
  }
  T top = lanes[0];
  for (int64_t l = 1; l < kLanes; ++l) top = lanes[l] > top ? lanes[l] : top;
  for (; i < n; ++i) top = static_cast<T>(x[i]) > top ? static_cast<T>(x[i]) : top;
  return top;
}

}  // namespace windlass
