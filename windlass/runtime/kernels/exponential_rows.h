// Rows along any axis of a tensor: their maxima and sums of exponentials, which softmax and
// cross-entropy share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/exponential.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {

inline constexpr int64_t kRowGrain = int64_t{1} << 14;  // elements worth a thread
inline constexpr int64_t kColumns = 256;                // neighbouring rows of one sweep

// A tensor seen from an axis: row (o, n), element c is at (o * size + c) * inner + n.
struct RowView {
  int64_t outer = 1, size = 1, inner = 1;

  RowView(at::IntArrayRef shape, int64_t axis) {
    for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i)
      (i < axis ? outer : i == axis ? size : inner) *= shape[static_cast<size_t>(i)];
  }
  int64_t rows() const { return outer * inner; }
  // Place of element c of a row.
  int64_t at(int64_t row, int64_t c) const {
    return (row / inner * size + c) * inner + row % inner;
  }

  // Calls f(first row, count, offset of element 0 of the first) on several threads: one row at a
  // time if its elements are neighbours, else up to kColumns rows that are.
  template <class F>
  void each(const F& f) const {
    const int64_t pieces = (inner + kColumns - 1) / kColumns;
    const int64_t work = std::max<int64_t>(1, size * std::min(inner, kColumns));
    at::parallel_for(0, outer * pieces, std::max<int64_t>(1, kRowGrain / work),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t k = begin; k < end; ++k) {
                         const int64_t o = k / pieces, n = k % pieces * kColumns;
                         f(o * inner + n, std::min(kColumns, inner - n), o * size * inner + n);
                       }
                     });
  }
};

// Sum of exponentials of a row without any finite maximum: of nothing, unless it has NaN.
template <class E, class T>
T sum_of_nothing(const E* x, int64_t size, int64_t stride) {
  for (int64_t c = 0; c < size; ++c)
    if (std::isnan(static_cast<T>(x[c * stride]))) return std::numeric_limits<T>::quiet_NaN();
  return 0;
}

// Maximum of a row and sum of the exponentials relative to it.
template <class E, class T>
void row_exponentials(const E* x, int64_t size, T* found_top, T* found_sum) {
  vectorized([=]() WINDLASS_INLINE {
    const T top = greatest_of<T>(x, size);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < size; ++c) sum += exp_negative(static_cast<T>(x[c]) - top);
    *found_top = top;
    *found_sum = sum;
  });
  if (*found_top == -std::numeric_limits<T>::infinity())
    *found_sum = sum_of_nothing<E, T>(x, size, 1);
}

// The same of n rows that are neighbours, their elements `stride` apart; n is at most kColumns.
template <class E, class T>
void column_exponentials(const E* x, int64_t size, int64_t stride, int64_t n, T* top, T* sum) {
  vectorized([=]() WINDLASS_INLINE {
    for (int64_t i = 0; i < n; ++i) {
      top[i] = static_cast<T>(x[i]);
      sum[i] = 0;
    }
    for (int64_t c = 1; c < size; ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<T>(x[c * stride + i]);
        top[i] = value > top[i] ? value : top[i];
      }
    }
    for (int64_t c = 0; c < size; ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        sum[i] += exp_negative(static_cast<T>(x[c * stride + i]) - top[i]);
    }
  });
  for (int64_t i = 0; i < n; ++i)
    if (top[i] == -std::numeric_limits<T>::infinity())
      sum[i] = sum_of_nothing<E, T>(x + i, size, stride);
}

// Calls f(row, maximum, sum) for every row of x, on several threads.
template <class E, class F>
void for_each_exponentials(const RowView& view, const E* x, const F& f) {
  using T = wide_t<E>;
  view.each([&](int64_t row, int64_t n, int64_t offset) {
    T top[kColumns], sum[kColumns];
    if (view.inner == 1)
      row_exponentials(x + offset, view.size, top, sum);
    else
      column_exponentials(x + offset, view.size, view.inner, n, top, sum);
    for (int64_t i = 0; i < n; ++i) f(row + i, top[i], sum[i]);
  });
}

}  // namespace windlass
