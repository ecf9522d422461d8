// Softmax and its logarithm. What rows of a split axis exchange: the maximum and the sum of
// exponentials forward, one sum backward.

#include <cmath>

#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Calls visit(row, at) for each row along an axis, at(i) being the offset of its element i.
template <class Visit>
void for_each_row(const AxisView& view, Visit&& visit) {
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t n = 0; n < view.inner; ++n)
      visit(o * view.inner + n, [&](int64_t i) { return (o * view.size + i) * view.inner + n; });
}

Shape row_statistics_shape(Shape shape, int64_t axis, int64_t width) {
  shape.erase(shape.begin() + axis);
  shape.push_back(width);
  return shape;
}

}  // namespace

Array softmax_begin(const ForwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const Array& x = call.input(0);
  const AxisView view = view_axis(x.shape, attrs.axis);
  Array statistics(row_statistics_shape(x.shape, attrs.axis, 2));
  for_each_row(view, [&](int64_t row, const auto& at) {
    const Exponentials found =
        exponentials_of(view.size, [&](int64_t i) { return x.values[at(i)]; });
    statistics.values[row * 2] = found.top;
    statistics.values[row * 2 + 1] = found.sum;
  });
  return statistics;
}

ForwardResult softmax_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const Array& x = call.input(0);
  const AxisView view = view_axis(x.shape, attrs.axis);
  const Array statistics = call.statistics != nullptr ? *call.statistics : softmax_begin(call);
  Array y(x.shape);
  for_each_row(view, [&](int64_t row, const auto& at) {
    const double lse = statistics.values[row * 2] + std::log(statistics.values[row * 2 + 1]);
    for (int64_t i = 0; i < view.size; ++i) {
      const double value = x.values[at(i)] - lse;
      y.values[at(i)] = attrs.log ? value : std::exp(value);
    }
  });
  return {{y}, {}};
}

// Sum of y dy, or of dy for the logarithm.
Array softmax_begin_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const Array& dy = call.gradient();
  const Array& y = call.output(0);
  const AxisView view = view_axis(y.shape, attrs.axis);
  Array sums(row_statistics_shape(y.shape, attrs.axis, 1));
  for_each_row(view, [&](int64_t row, const auto& at) {
    for (int64_t i = 0; i < view.size; ++i)
      sums.values[row] += attrs.log ? dy.values[at(i)] : y.values[at(i)] * dy.values[at(i)];
  });
  return sums;
}

// dx = y (dy - sum(y dy)), or dy - exp(y) sum(dy) for the logarithm.
std::vector<Array> softmax_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  if (!call.wants(0)) return {Array()};
  const Array& dy = call.gradient();
  const Array& y = call.output(0);
  const Array sums =
      call.statistics() != nullptr ? *call.statistics() : softmax_begin_backward(call);
  const AxisView view = view_axis(y.shape, attrs.axis);
  Array dx(y.shape);
  for_each_row(view, [&](int64_t row, const auto& at) {
    for (int64_t i = 0; i < view.size; ++i) {
      const double value = y.values[at(i)], g = dy.values[at(i)];
      dx.values[at(i)] =
          attrs.log ? g - std::exp(value) * sums.values[row] : value * (g - sums.values[row]);
    }
  });
  return {dx};
}

}  // namespace windlass::reference
