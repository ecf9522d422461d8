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

// What is selected: along an axis, of which some rows are here.
struct Selection {
  int64_t axis;
  const Array& indices;
  bool from_end;
  const AxisPart& rows;
};

// Calls visit(selected, source) with the element offsets of every element that is selected of an
// array of `shape` and is here.
template <class Visit>
void for_each_selected(const Shape& shape, const Selection& selection, Visit&& visit) {
  const AxisView view = view_axis(shape, selection.axis);
  const AxisPart& rows = selection.rows;
  const auto count = static_cast<int64_t>(selection.indices.values.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = rows.to_local(
        resolve(selection.indices.values[i], rows.whole_size(view.size), selection.from_end));
    if (from < 0) continue;
    for (int64_t o = 0; o < view.outer; ++o) {
      for (int64_t n = 0; n < view.inner; ++n)
        visit((o * count + i) * view.inner + n, (o * view.size + from) * view.inner + n);
    }
  }
}

Array select(const Array& data, const Selection& selection) {
  const auto [axis, indices, from_end, rows] = selection;
  Shape shape(data.shape.begin(), data.shape.begin() + axis);
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), data.shape.begin() + axis + 1, data.shape.end());
  Array result(shape);
  for_each_selected(data.shape, selection,
                    [&](int64_t to, int64_t from) { result.values[to] = data.values[from]; });
  return result;
}

Array scatter_add(const Shape& shape, const Selection& selection, const Array& gradient) {
  Array result(shape);
  for_each_selected(shape, selection, [&](int64_t selected, int64_t source) {
    result.values[source] += gradient.values[selected];
  });
  return result;
}

}  // namespace

ForwardResult embedding_forward(const ForwardCall& call) {
  return {{select(call.input(1), {0, call.input(0), false, call.facts.rows})}, {}};
}

std::vector<Array> embedding_backward(const BackwardCall& call) {
  if (!call.wants(1)) return {};
  return {Array(), scatter_add(call.shape(1), {0, call.input(0), false, call.facts().rows},
                               call.gradient())};
}

ForwardResult gather_forward(const ForwardCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  return {{select(call.input(0), {axis, call.input(1), true, call.facts.rows})}, {}};
}

std::vector<Array> gather_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  return {
      scatter_add(call.shape(0), {axis, call.input(1), true, call.facts().rows}, call.gradient())};
}

// Calls visit(place, element) with the offsets of each index and of the element of the data that it
// names, in the order of the indices.
template <class Visit>
void for_each_element(const Shape& data, int64_t axis, const Array& indices, Visit&& visit) {
  const AxisView view = view_axis(data, axis), places = view_axis(indices.shape, axis);
  for (int64_t o = 0; o < places.outer; ++o)
    for (int64_t i = 0; i < places.size; ++i)
      for (int64_t n = 0; n < places.inner; ++n) {
        const int64_t place = (o * places.size + i) * places.inner + n;
        const int64_t at = resolve(indices.values[place], view.size, true);
        visit(place, (o * view.size + at) * view.inner + n);
      }
}

ForwardResult gather_elements_forward(const ForwardCall& call) {
  Array y(call.input(1).shape);
  for_each_element(
      call.input(0).shape, call.attrs<AxisAttrs>().axis, call.input(1),
      [&](int64_t place, int64_t from) { y.values[place] = call.input(0).values[from]; });
  return {{y}, {}};
}

std::vector<Array> gather_elements_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  Array dx(call.shape(0));
  for_each_element(
      dx.shape, call.attrs<AxisAttrs>().axis, call.input(1),
      [&](int64_t place, int64_t to) { dx.values[to] += call.gradient().values[place]; });
  return {dx};
}

ForwardResult scatter_elements_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<ScatterAttrs>();
  Array y = call.input(0);
  for_each_element(y.shape, attrs.axis, call.input(1), [&](int64_t place, int64_t to) {
    const double value = call.input(2).values[place];
    y.values[to] = attrs.add ? y.values[to] + value : value;
  });
  return {{y}, {}};
}

// What was written over has no gradient: neither the data nor an earlier update.
std::vector<Array> scatter_elements_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<ScatterAttrs>();
  const Array& g = call.gradient();
  Array data = g, updates(call.shape(2));
  std::vector<int64_t> last(g.values.size(), -1);
  for_each_element(g.shape, attrs.axis, call.input(1), [&](int64_t place, int64_t to) {
    data.values[to] = attrs.add ? g.values[to] : 0;
    updates.values[place] = g.values[to];
    if (!attrs.add && last[to] >= 0) updates.values[last[to]] = 0;
    last[to] = place;
  });
  return {call.wants(0) ? data : Array(), Array(), call.wants(2) ? updates : Array()};
}

}  // namespace windlass::reference
