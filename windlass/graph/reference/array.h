// Indexing of dense arrays: strides, broadcasting, walks over an index space.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "windlass/graph/reference/interpret.h"

namespace windlass::reference {

// Distance in elements between neighbours along each axis; 0 along an axis that is broadcast.
using Strides = std::vector<int64_t>;

Strides row_major_strides(const Shape& shape);

// Strides that read an array of shape `from` as if it were broadcast to `to`.
Strides broadcast_strides(const Shape& from, const Shape& to);

// Calls visit(flat, at) for each index of `shape` in row-major order: `flat` counts the calls,
// at[k] is the offset of the index under strides[k].
template <size_t N, class Visit>
void walk(const Shape& shape, const std::array<Strides, N>& strides, Visit&& visit) {
  const size_t rank = shape.size();
  for (int64_t size : shape)
    if (size == 0) return;
  std::array<int64_t, N> at{};
  if (rank == 0) {
    visit(int64_t{0}, at);
    return;
  }
  const size_t last = rank - 1;
  std::vector<int64_t> index(rank, 0);
  int64_t flat = 0;
  while (true) {
    for (int64_t i = 0; i < shape[last]; ++i) {
      visit(flat++, at);
      for (size_t k = 0; k < N; ++k) at[k] += strides[k][last];
    }
    for (size_t k = 0; k < N; ++k) at[k] -= strides[k][last] * shape[last];
    size_t axis = last;
    while (true) {
      if (axis == 0) return;
      --axis;
      for (size_t k = 0; k < N; ++k) at[k] += strides[k][axis];
      if (++index[axis] < shape[axis]) break;
      for (size_t k = 0; k < N; ++k) at[k] -= strides[k][axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

// Elements of shape[begin, end) multiplied.
int64_t product(const Shape& shape, size_t begin, size_t end);

// A shape seen from one axis: element (o, i, n) is at (o * size + i) * inner + n.
struct AxisView {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
};
AxisView view_axis(const Shape& shape, int64_t axis);

// `x` broadcast to `shape`.
Array broadcast_to(const Array& x, const Shape& shape);

// Sum of `x` over the axes along which an array of `shape` was broadcast to x.shape: the gradient
// of broadcast_to.
Array sum_to(const Array& x, const Shape& shape);

// The maximum of some values and the sum of their exponentials relative to it; 0 if none is above
// -infinity.
struct Exponentials {
  double top = -std::numeric_limits<double>::infinity();
  double sum = 0;
};

template <class Value>
Exponentials exponentials_of(int64_t count, Value&& value) {
  Exponentials result;
  const double none = result.top;
  for (int64_t i = 0; i < count; ++i) result.top = std::max(result.top, value(i));
  for (int64_t i = 0; i < count && result.top != none; ++i)
    result.sum += std::exp(value(i) - result.top);
  return result;
}

// A matrix inside an array.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;

  T& operator()(int64_t i, int64_t j) const { return data[i * row_stride + j * column_stride]; }
  Matrix transposed() const { return {data, column_stride, row_stride}; }
};

// c[m, n] += a[m, k] b[k, n].
void add_product(Matrix<const double> a, Matrix<const double> b, Matrix<double> c, int64_t m,
                 int64_t n, int64_t k);

}  // namespace windlass::reference
