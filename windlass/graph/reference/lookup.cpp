// Selection of slices by index. An embedding is a gather of rows.

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Whole number in [0, size) that `index` stands for; negative ones count from the end if
// `from_end`.
int64_t resolve(double index, int64_t size, bool from_end) {
  const double limit = static_cast<double>(size);
  if (!(index >= (from_end ? -limit : 0) && index < limit))
    fail_input("index {} is out of range for an axis of {}", index, size);
  const auto at = static_cast<int64_t>(index);
  return at < 0 ? at + size : at;
}

// Calls visit(selected, source) with the element offsets of every element of the selection of
// `indices` along `axis` of an array of `shape`.
template <class Visit>
void for_each_selected(const Shape& shape, int64_t axis, const Array& indices, bool from_end,
                       Visit&& visit) {
  const AxisView view = view_axis(shape, axis);
  const auto count = static_cast<int64_t>(indices.values.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = resolve(indices.values[i], view.size, from_end);
    for (int64_t o = 0; o < view.outer; ++o) {
      for (int64_t n = 0; n < view.inner; ++n)
        visit((o * count + i) * view.inner + n, (o * view.size + from) * view.inner + n);
    }
  }
}

Array select(const Array& data, int64_t axis, const Array& indices, bool from_end) {
  Shape shape(data.shape.begin(), data.shape.begin() + axis);
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), data.shape.begin() + axis + 1, data.shape.end());
  Array result(shape);
  for_each_selected(data.shape, axis, indices, from_end,
                    [&](int64_t to, int64_t from) { result.values[to] = data.values[from]; });
  return result;
}

Array scatter_add(const Shape& shape, int64_t axis, const Array& indices, bool from_end,
                  const Array& gradient) {
  Array result(shape);
  for_each_selected(shape, axis, indices, from_end, [&](int64_t selected, int64_t source) {
    result.values[source] += gradient.values[selected];
  });
  return result;
}

}  // namespace

ForwardResult embedding_forward(const ForwardCall& call) {
  return {{select(call.input(1), 0, call.input(0), false)}, {}};
}

std::vector<Array> embedding_backward(const BackwardCall& call) {
  if (!call.wants(1)) return {};
  return {Array(), scatter_add(call.shape(1), 0, call.input(0), false, call.gradient())};
}

ForwardResult gather_forward(const ForwardCall& call) {
  return {{select(call.input(0), call.attrs<AxisAttrs>().axis, call.input(1), true)}, {}};
}

std::vector<Array> gather_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  return {scatter_add(call.shape(0), call.attrs<AxisAttrs>().axis, call.input(1), true,
                      call.gradient())};
}

}  // namespace windlass::reference
