// Reductions, running sums and the place of the maximum.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// Shape of x with the reduced axes of size 1.
Shape kept_shape(const ReduceAttrs& attrs, const Shape& x) {
  Shape shape = x;
  for (int64_t axis : attrs.axes) shape[axis] = 1;
  return shape;
}

Shape reduced_shape(const ReduceAttrs& attrs, const Shape& x) {
  if (attrs.keep_dims) return kept_shape(attrs, x);
  Shape shape;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    if (std::find(attrs.axes.begin(), attrs.axes.end(), axis) == attrs.axes.end())
      shape.push_back(x[axis]);
  }
  return shape;
}

// Calls visit(x, y) with the element offsets of each input and the output it goes into.
template <class Visit>
void for_each_reduced(const ReduceAttrs& attrs, const Shape& x, Visit&& visit) {
  walk<1>(x, {broadcast_strides(kept_shape(attrs, x), x)},
          [&](int64_t i, const auto& at) { visit(i, at[0]); });
}

double reduced_count(const ReduceAttrs& attrs, const Shape& x, const PieceFacts& facts) {
  if (facts.mean_count >= 0) return facts.mean_count;
  double count = 1;
  for (int64_t axis : attrs.axes) count *= static_cast<double>(x[axis]);
  return count;
}

double initial_value(ReduceFn fn) {
  switch (fn) {
    case ReduceFn::Max:
    case ReduceFn::LogSumExp: return -kUnbounded;
    case ReduceFn::Min: return kUnbounded;
    case ReduceFn::Prod: return 1;
    default: return 0;
  }
}

void fold_in(ReduceFn fn, double value, double& into) {
  switch (fn) {
    case ReduceFn::Sum:
    case ReduceFn::Mean: into += value; break;
    case ReduceFn::Max:
    case ReduceFn::LogSumExp: into = std::max(into, value); break;
    case ReduceFn::Min: into = std::min(into, value); break;
    case ReduceFn::Prod: into *= value; break;
    case ReduceFn::L1: into += std::abs(value); break;
    case ReduceFn::L2:
    case ReduceFn::SumSquare: into += value * value; break;
  }
}

// log(sum(exp(x))) around the maximum of each output.
void finish_log_sum_exp(const ReduceAttrs& attrs, const Array& x, Array& y) {
  std::vector<double> sums(y.values.size(), 0);
  for_each_reduced(attrs, x.shape, [&](int64_t i, int64_t o) {
    if (y.values[o] != -kUnbounded) sums[o] += std::exp(x.values[i] - y.values[o]);
  });
  for (size_t o = 0; o < sums.size(); ++o)
    if (y.values[o] != -kUnbounded) y.values[o] += std::log(sums[o]);
}

// Product of the other factors of the same output, zeros and all.
Array prod_gradient(const ReduceAttrs& attrs, const Array& x, const Array& g) {
  std::vector<double> zeros(g.values.size(), 0), rest(g.values.size(), 1);
  for_each_reduced(attrs, x.shape, [&](int64_t i, int64_t o) {
    if (x.values[i] == 0) {
      zeros[o] += 1;
    } else {
      rest[o] *= x.values[i];
    }
  });
  Array dx(x.shape);
  for_each_reduced(attrs, x.shape, [&](int64_t i, int64_t o) {
    const double value = x.values[i];
    const double others =
        value == 0 ? (zeros[o] > 1 ? 0 : rest[o]) : (zeros[o] > 0 ? 0 : rest[o] / value);
    dx.values[i] = g.values[o] * others;
  });
  return dx;
}

// The gradient goes to the elements equal to the extremum in equal shares.
Array extremum_gradient(const ReduceAttrs& attrs, const Array& x, const Array& y, const Array& g,
                        const Array& ties) {
  Array dx(x.shape);
  for_each_reduced(attrs, x.shape, [&](int64_t i, int64_t o) {
    if (x.values[i] == y.values[o]) dx.values[i] = g.values[o] / ties.values[o];
  });
  return dx;
}

}  // namespace

ForwardResult reduce_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  const Array& x = call.input(0);
  Array y(reduced_shape(attrs, x.shape), initial_value(attrs.fn));
  for_each_reduced(attrs, x.shape,
                   [&](int64_t i, int64_t o) { fold_in(attrs.fn, x.values[i], y.values[o]); });
  if (attrs.fn == ReduceFn::LogSumExp) finish_log_sum_exp(attrs, x, y);
  for (double& value : y.values) {
    if (attrs.fn == ReduceFn::Mean) value /= reduced_count(attrs, x.shape, call.facts);
    if (attrs.fn == ReduceFn::L2) value = std::sqrt(value);
    if (is_integer(call.dtype(0))) value = std::trunc(value);
  }
  return {{y}, {}};
}

// How many elements equal the extremum.
Array reduce_begin_backward(const BackwardCall& call) {
  const Array& x = call.input(0);
  const Array& y = call.output(0);
  Shape shape = y.shape;
  shape.push_back(1);
  Array ties(shape);
  for_each_reduced(call.attrs<ReduceAttrs>(), x.shape, [&](int64_t i, int64_t o) {
    ties.values[o] += x.values[i] == y.values[o] ? 1 : 0;
  });
  return ties;
}

std::vector<Array> reduce_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  if (!call.wants(0)) return {};
  const Array& g = call.gradient();
  const Shape& shape = call.shape(0);
  // dx = dy slope(x, y); x and y are read only where the function needs them.
  const auto by_slope = [&](auto&& slope) {
    Array dx(shape);
    for_each_reduced(attrs, shape,
                     [&](int64_t i, int64_t o) { dx.values[i] = g.values[o] * slope(i, o); });
    return dx;
  };
  const auto x = [&](int64_t i) { return call.input(0).values[i]; };
  const auto y = [&](int64_t o) { return call.output(0).values[o]; };
  switch (attrs.fn) {
    case ReduceFn::Sum: return {by_slope([](int64_t, int64_t) { return 1.0; })};
    case ReduceFn::Mean:
      return {by_slope(
          [&](int64_t, int64_t) { return 1 / reduced_count(attrs, shape, call.facts()); })};
    case ReduceFn::L1:
      return {by_slope([&](int64_t i, int64_t) { return x(i) > 0 ? 1.0 : x(i) < 0 ? -1.0 : 0.0; })};
    case ReduceFn::L2:
      return {by_slope([&](int64_t i, int64_t o) { return y(o) == 0 ? 0 : x(i) / y(o); })};
    case ReduceFn::SumSquare: return {by_slope([&](int64_t i, int64_t) { return 2 * x(i); })};
    case ReduceFn::LogSumExp:
      return {by_slope([&](int64_t i, int64_t o) { return std::exp(x(i) - y(o)); })};
    case ReduceFn::Prod: return {prod_gradient(attrs, call.input(0), g)};
    case ReduceFn::Max:
    case ReduceFn::Min: {
      const Array ties =
          call.statistics() != nullptr ? *call.statistics() : reduce_begin_backward(call);
      return {extremum_gradient(attrs, call.input(0), call.output(0), g, ties)};
    }
  }
  return {};
}

ForwardResult cumsum_forward(const ForwardCall& call) {
  Array y = call.input(0);
  const AxisView view = view_axis(y.shape, call.attrs<AxisAttrs>().axis);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t i = 1; i < view.size; ++i) {
      for (int64_t n = 0; n < view.inner; ++n) {
        y.values[(o * view.size + i) * view.inner + n] +=
            y.values[(o * view.size + i - 1) * view.inner + n];
      }
    }
  }
  return {{y}, {}};
}

// Running sum from the other end.
std::vector<Array> cumsum_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  Array dx = call.gradient();
  const AxisView view = view_axis(dx.shape, call.attrs<AxisAttrs>().axis);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t i = view.size - 1; i-- > 0;) {
      for (int64_t n = 0; n < view.inner; ++n) {
        dx.values[(o * view.size + i) * view.inner + n] +=
            dx.values[(o * view.size + i + 1) * view.inner + n];
      }
    }
  }
  return {dx};
}

// The first of equal maxima; the axis stays with size 1.
ForwardResult argmax_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  const AxisView view = view_axis(x.shape, axis);
  Shape shape = x.shape;
  shape[axis] = 1;
  Array y(shape);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const auto value = [&](int64_t i) { return x.values[(o * view.size + i) * view.inner + n]; };
      int64_t best = 0;
      for (int64_t i = 1; i < view.size; ++i)
        if (value(i) > value(best)) best = i;
      y.values[o * view.inner + n] = static_cast<double>(best);
    }
  }
  return {{y}, {}};
}

ForwardResult top_k_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  const auto& attrs = call.attrs<TopKAttrs>();
  const AxisView view = view_axis(x.shape, attrs.axis);
  Shape shape = x.shape;
  shape[attrs.axis] = attrs.k;
  Array values(shape), indices(shape);
  std::vector<int64_t> order(static_cast<size_t>(view.size));
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const auto value = [&](int64_t i) { return x.values[(o * view.size + i) * view.inner + n]; };
      std::iota(order.begin(), order.end(), int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return attrs.largest ? value(a) > value(b) : value(a) < value(b);
      });
      for (int64_t i = 0; i < attrs.k; ++i) {
        values.values[(o * attrs.k + i) * view.inner + n] = value(order[i]);
        indices.values[(o * attrs.k + i) * view.inner + n] = static_cast<double>(order[i]);
      }
    }
  }
  return {{values, indices}, {}};
}

std::vector<Array> top_k_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  Array dx(call.shape(0));
  const auto& attrs = call.attrs<TopKAttrs>();
  const AxisView view = view_axis(dx.shape, attrs.axis);
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < attrs.k; ++i)
      for (int64_t n = 0; n < view.inner; ++n) {
        const int64_t place = (o * attrs.k + i) * view.inner + n;
        const auto at = static_cast<int64_t>(call.output(1).values[place]);
        dx.values[(o * view.size + at) * view.inner + n] += call.gradient().values[place];
      }
  return {dx};
}

}  // namespace windlass::reference
