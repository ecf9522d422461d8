#include "windlass/graph/reference/array.h"

#include "windlass/base/error.h"

namespace windlass {

Array::Array(Shape s, double fill)
    : shape(std::move(s)), values(static_cast<size_t>(element_count(shape)), fill) {}

namespace reference {

Strides row_major_strides(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

Strides broadcast_strides(const Shape& from, const Shape& to) {
  ensure(from.size() <= to.size(), "broadcast to a lower rank");
  const Strides own = row_major_strides(from);
  Strides strides(to.size(), 0);
  const size_t extra = to.size() - from.size();
  for (size_t axis = 0; axis < from.size(); ++axis) {
    ensure(from[axis] == 1 || from[axis] == to[extra + axis], "broadcast of an axis that is not 1");
    strides[extra + axis] = from[axis] == 1 ? 0 : own[axis];
  }
  return strides;
}

int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t axis = begin; axis < end; ++axis) result *= shape[axis];
  return result;
}

AxisView view_axis(const Shape& shape, int64_t axis) {
  ensure(axis >= 0 && static_cast<size_t>(axis) < shape.size(), "axis out of range");
  const auto at = static_cast<size_t>(axis);
  return {product(shape, 0, at), shape[at], product(shape, at + 1, shape.size())};
}

Array broadcast_to(const Array& x, const Shape& shape) {
  Array result(shape);
  walk<1>(shape, {broadcast_strides(x.shape, shape)},
          [&](int64_t i, const auto& at) { result.values[i] = x.values[at[0]]; });
  return result;
}

Array sum_to(const Array& x, const Shape& shape) {
  Array result(shape);
  walk<1>(x.shape, {broadcast_strides(shape, x.shape)},
          [&](int64_t i, const auto& at) { result.values[at[0]] += x.values[i]; });
  return result;
}

void add_product(Matrix<const double> a, Matrix<const double> b, Matrix<double> c, int64_t m,
                 int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const double factor = a(i, l);
      for (int64_t j = 0; j < n; ++j) c(i, j) += factor * b(l, j);
    }
  }
}

}  // namespace reference
}  // namespace windlass
