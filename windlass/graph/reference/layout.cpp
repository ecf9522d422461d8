// Ops that only move values. Each is a relation between output and input offsets, read one way for
// the forward pass and summed the other way for the gradient.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Output element i reads the input at base + (offset of its index under strides).
struct StridedView {
  Shape shape;
  Strides strides;
  int64_t base = 0;
};

Array read(const StridedView& view, const Array& x) {
  Array y(view.shape);
  walk<1>(view.shape, {view.strides},
          [&](int64_t i, const auto& at) { y.values[i] = x.values[view.base + at[0]]; });
  return y;
}

Array add_back(const StridedView& view, const Array& gradient, const Shape& shape) {
  Array dx(shape);
  walk<1>(view.shape, {view.strides},
          [&](int64_t i, const auto& at) { dx.values[view.base + at[0]] += gradient.values[i]; });
  return dx;
}

StridedView transpose_view(const TransposeAttrs& attrs, const Shape& x) {
  const Strides strides = row_major_strides(x);
  StridedView view;
  for (int64_t axis : attrs.order) {
    view.shape.push_back(x[axis]);
    view.strides.push_back(strides[axis]);
  }
  return view;
}

StridedView slice_view(const SliceAttrs& attrs, const Shape& x) {
  const Strides strides = row_major_strides(x);
  StridedView view;
  view.shape = attrs.size;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    const int64_t first = attrs.start[axis],
                  last = first + (attrs.size[axis] - 1) * attrs.step[axis];
    if (attrs.size[axis] > 0 && (std::min(first, last) < 0 || std::max(first, last) >= x[axis])) {
      fail_input("slice from {} by {} of size {} leaves axis {} of {}", first, attrs.step[axis],
                 attrs.size[axis], axis, format_shape(x));
    }
    view.strides.push_back(strides[axis] * attrs.step[axis]);
    view.base += strides[axis] * first;
  }
  return view;
}

// Calls visit(part, whole, size) with the offsets of every contiguous run shared by a part of an
// array along `axis` and the whole, the part beginning at index `start` of the axis.
template <class Visit>
void for_each_run(const Shape& part, const Shape& whole, int64_t axis, int64_t start,
                  Visit&& visit) {
  const AxisView p = view_axis(part, axis), w = view_axis(whole, axis);
  for (int64_t o = 0; o < p.outer; ++o)
    visit(o * p.size * p.inner, (o * w.size + start) * w.inner, p.size * p.inner);
}

void put_part(const Array& part, int64_t axis, int64_t start, Array& whole) {
  for_each_run(part.shape, whole.shape, axis, start, [&](int64_t from, int64_t to, int64_t size) {
    std::copy_n(part.values.begin() + from, size, whole.values.begin() + to);
  });
}

Array take_part(const Array& whole, int64_t axis, int64_t start, int64_t size) {
  Shape shape = whole.shape;
  shape[axis] = size;
  Array part(shape);
  for_each_run(shape, whole.shape, axis, start, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(whole.values.begin() + from, count, part.values.begin() + to);
  });
  return part;
}

// Input index that a padded index reads, -1 for the constant.
int64_t pad_source(PadMode mode, int64_t at, int64_t size) {
  if (at >= 0 && at < size) return at;
  switch (mode) {
    case PadMode::Constant: return -1;
    case PadMode::Edge: return std::clamp(at, int64_t{0}, size - 1);
    case PadMode::Reflect: {
      if (size == 1) return 0;
      const int64_t period = 2 * (size - 1);
      const int64_t phase = (at % period + period) % period;
      return std::min(phase, period - phase);
    }
  }
  return -1;
}

Shape padded_shape(const PadAttrs& attrs, const Shape& x) {
  Shape shape = x;
  for (size_t axis = 0; axis < x.size(); ++axis) shape[axis] += attrs.begin[axis] + attrs.end[axis];
  return shape;
}

// Calls visit(padded, source) with the element offsets, source being -1 for the constant.
template <class Visit>
void for_each_padded(const PadAttrs& attrs, const Shape& x, Visit&& visit) {
  const Shape shape = padded_shape(attrs, x);
  const Strides strides = row_major_strides(x), padded_strides = row_major_strides(shape);
  std::vector<std::vector<int64_t>> sources(x.size());
  for (size_t axis = 0; axis < x.size(); ++axis) {
    for (int64_t i = 0; i < shape[axis]; ++i) {
      const int64_t from = pad_source(attrs.mode, i - attrs.begin[axis], x[axis]);
      sources[axis].push_back(from < 0 ? -1 : from * strides[axis]);
    }
  }
  const int64_t count = element_count(shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t source = 0;
    for (size_t axis = 0; axis < x.size() && source >= 0; ++axis) {
      const int64_t from = sources[axis][i / padded_strides[axis] % shape[axis]];
      source = from < 0 ? -1 : source + from;
    }
    visit(i, source);
  }
}

}  // namespace

ForwardResult reshape_forward(const ForwardCall& call) {
  Array y = call.input(0);
  const Shape& shape = call.attrs<ShapeAttrs>().shape;
  if (element_count(shape) != element_count(y.shape))
    fail_input("{} has not as many elements as {}", format_shape(y.shape), format_shape(shape));
  y.shape = shape;
  return {{y}, {}};
}

std::vector<Array> reshape_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  return {Array(call.shape(0), call.gradient().values)};
}

ForwardResult transpose_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  return {{read(transpose_view(call.attrs<TransposeAttrs>(), x.shape), x)}, {}};
}

std::vector<Array> transpose_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  const StridedView view = transpose_view(call.attrs<TransposeAttrs>(), call.shape(0));
  return {add_back(view, call.gradient(), call.shape(0))};
}

ForwardResult slice_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  return {{read(slice_view(call.attrs<SliceAttrs>(), x.shape), x)}, {}};
}

std::vector<Array> slice_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  const StridedView view = slice_view(call.attrs<SliceAttrs>(), call.shape(0));
  return {add_back(view, call.gradient(), call.shape(0))};
}

ForwardResult concat_forward(const ForwardCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  Shape shape = call.input(0).shape;
  shape[axis] = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) shape[axis] += call.input(i).shape[axis];
  Array y(shape);
  int64_t start = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    put_part(call.input(i), axis, start, y);
    start += call.input(i).shape[axis];
  }
  return {{y}, {}};
}

std::vector<Array> concat_backward(const BackwardCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  std::vector<Array> result;
  int64_t start = 0;
  for (size_t i = 0; i < call.signature().inputs.size(); ++i) {
    const int64_t size = call.shape(i)[axis];
    result.push_back(call.wants(i) ? take_part(call.gradient(), axis, start, size) : Array());
    start += size;
  }
  return result;
}

ForwardResult split_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<SplitAttrs>();
  ForwardResult result;
  int64_t start = 0;
  for (int64_t size : attrs.sizes) {
    result.outputs.push_back(take_part(call.input(0), attrs.axis, start, size));
    start += size;
  }
  return result;
}

std::vector<Array> split_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<SplitAttrs>();
  if (!call.wants(0)) return {};
  Array dx(call.shape(0));
  int64_t start = 0;
  for (size_t i = 0; i < attrs.sizes.size(); ++i) {
    if (const Array* g = call.gradient_or_null(i)) put_part(*g, attrs.axis, start, dx);
    start += attrs.sizes[i];
  }
  return {dx};
}

ForwardResult pad_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<PadAttrs>();
  const Array& x = call.input(0);
  Array y(padded_shape(attrs, x.shape), attrs.value);
  for_each_padded(attrs, x.shape, [&](int64_t i, int64_t source) {
    if (source >= 0) y.values[i] = x.values[source];
  });
  return {{y}, {}};
}

std::vector<Array> pad_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  Array dx(call.shape(0));
  for_each_padded(call.attrs<PadAttrs>(), call.shape(0), [&](int64_t i, int64_t source) {
    if (source >= 0) dx.values[source] += call.gradient().values[i];
  });
  return {dx};
}

ForwardResult expand_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  return {{broadcast_to(x, broadcast_shapes(x.shape, call.attrs<ShapeAttrs>().shape))}, {}};
}

std::vector<Array> expand_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  return {sum_to(call.gradient(), call.shape(0))};
}

}  // namespace windlass::reference
