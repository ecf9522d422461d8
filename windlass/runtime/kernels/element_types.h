// Choice of code by element type.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "windlass/base/error.h"

namespace windlass {

// What a floating-point type is computed in.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <class T>
using wide_t = typename Wide<T>::type;

inline at::Tensor in_type(const at::Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type ? x : x.to(type);
}

// Calls f with a value of the floating-point element type.
template <class F>
decltype(auto) with_float_type(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kDouble: return f(double{});
    case at::kFloat: return f(float{});
    case at::kBFloat16: return f(c10::BFloat16{});
    case at::kHalf: return f(c10::Half{});
    default:
      fail(ErrorKind::Internal, "internal error: no kernel for elements of type {}",
           c10::toString(type));
  }
}

// Calls f with a value of the integer element type.
template <class F>
decltype(auto) with_integer_type(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kLong: return f(int64_t{});
    case at::kInt: return f(int32_t{});
    case at::kShort: return f(int16_t{});
    case at::kChar: return f(int8_t{});
    case at::kByte: return f(uint8_t{});
    default:
      fail(ErrorKind::Internal, "internal error: no kernel for indices of type {}",
           c10::toString(type));
  }
}

}  // namespace windlass
