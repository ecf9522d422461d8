#include "windlass/runtime/regions.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// Elements summed at a time: they stay in the nearest cache.
constexpr int64_t kAtOnce = 2048;

template <class Visit>
void with_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::F64: return visit(double{});
    case DType::F32: return visit(float{});
    case DType::BF16: return visit(c10::BFloat16{});
    case DType::F16: return visit(c10::Half{});
    case DType::I64: return visit(int64_t{});
    case DType::I32: return visit(int32_t{});
    case DType::I16: return visit(int16_t{});
    case DType::I8: return visit(int8_t{});
    case DType::U8:
    case DType::Bool: return visit(uint8_t{});
    case DType::None: break;
  }
  ensure(false, "no element type");
}

template <class T>
T combined(CombineFn fn, T a, T b) {
  switch (fn) {
    case CombineFn::Sum: return static_cast<T>(a + b);
    case CombineFn::Max: return a < b ? b : a;
    case CombineFn::Min: return b < a ? b : a;
  }
  return a;
}

template <class T>
constexpr bool kNarrow = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;
// Sums of narrow types are fp32.
template <class T>
using Wide = std::conditional_t<kNarrow<T>, float, T>;

template <class T>
void combine_run(CombineFn combine, const T* from, T* to, int64_t count) {
  if (combine == CombineFn::Sum) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(to[i] + from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = combined<T>(combine, to[i], from[i]);
  }
}

}  // namespace

void copy_overlap(const Overlap& overlap, DType dtype, const std::byte* from, std::byte* to) {
  const int64_t each = element_bytes(dtype);
  overlap.for_each([&](int64_t f, int64_t t, int64_t n) {
    std::memcpy(to + t * each, from + f * each, static_cast<size_t>(n * each));
  });
}

void combine_overlap(const Overlap& overlap, DType dtype, CombineFn combine, const std::byte* from,
                     std::byte* to) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    overlap.for_each([&](int64_t f, int64_t t, int64_t n) {
      combine_run(combine, reinterpret_cast<const T*>(from) + f, reinterpret_cast<T*>(to) + t, n);
    });
  });
}

void pack_overlap(const Overlap& overlap, DType dtype, const std::byte* from, std::byte* to) {
  const int64_t each = element_bytes(dtype);
  overlap.for_each([&](int64_t f, int64_t, int64_t n) {
    std::memcpy(to, from + f * each, static_cast<size_t>(n * each));
    to += n * each;
  });
}

void copy_packed(const Overlap& overlap, DType dtype, const std::byte* packed, std::byte* to) {
  const int64_t each = element_bytes(dtype);
  overlap.for_each([&](int64_t, int64_t t, int64_t n) {
    std::memcpy(to + t * each, packed, static_cast<size_t>(n * each));
    packed += n * each;
  });
}

void combine_packed(const Overlap& overlap, DType dtype, CombineFn combine, const std::byte* packed,
                    std::byte* to) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = reinterpret_cast<const T*>(packed);
    overlap.for_each([&](int64_t, int64_t t, int64_t n) {
      combine_run(combine, from, reinterpret_cast<T*>(to) + t, n);
      from += n;
    });
  });
}

void add_overlap_wide(const Overlap& overlap, DType dtype, const std::byte* from, float* to) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kNarrow<T>)
      overlap.for_each([&](int64_t f, int64_t t, int64_t n) {
        const T* source = reinterpret_cast<const T*>(from) + f;
        for (int64_t i = 0; i < n; ++i) to[t + i] += static_cast<float>(source[i]);
      });
  });
}

void combine_terms(DType dtype, CombineFn combine, const std::vector<const std::byte*>& terms,
                   const std::vector<SumTarget>& targets, int64_t count) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    std::array<W, kAtOnce> sums;
    W* const sum = sums.data();
    for (int64_t at = 0; at < count; at += kAtOnce) {
      const int64_t size = std::min(kAtOnce, count - at);
      for (size_t m = 0; m < terms.size(); ++m) {
        const T* term = reinterpret_cast<const T*>(terms[m]) + at;
        if (m == 0) {
#pragma omp simd
          for (int64_t i = 0; i < size; ++i) sum[i] = static_cast<W>(term[i]);
        } else if (combine == CombineFn::Sum) {
#pragma omp simd
          for (int64_t i = 0; i < size; ++i)
            sum[i] = static_cast<W>(sum[i] + static_cast<W>(term[i]));
        } else {
          for (int64_t i = 0; i < size; ++i)
            sum[i] = combined<W>(combine, sum[i], static_cast<W>(term[i]));
        }
      }
      for (const SumTarget& target : targets) {
        T* to = reinterpret_cast<T*>(target.data) + at;
        if (target.adds) {
#pragma omp simd
          for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(static_cast<W>(to[i]) + sum[i]);
        } else {
#pragma omp simd
          for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(sum[i]);
        }
      }
    }
  });
}

void narrow(const float* from, DType dtype, std::byte* to, int64_t count) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kNarrow<T>)
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<T*>(to)[i] = static_cast<T>(from[i]);
  });
}

}  // namespace windlass
