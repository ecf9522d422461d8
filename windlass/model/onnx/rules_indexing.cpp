// Import rules: reading and writing at places that are known when the model is read, as exporters
// write indexing with lists and assignment to slices. Data are taken as a matrix of which whole
// rows are read or written: slices behind the indexed axes, or single elements.

#include <algorithm>
#include <set>
#include <utility>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// Tables of places larger than this are not materialised.
constexpr int64_t kTableLimit = int64_t{1} << 24;

// Rows of the data, in the order in which they are read or written.
struct Places {
  std::vector<int64_t> rows;
  int64_t row_count = 1;  // of the data
  int64_t width = 1;      // elements of a row
};

// Index into an axis, counted from the end if negative.
int64_t checked_index(double index, int64_t size) {
  const int64_t at = checked_int(index);
  if (at < -size || at >= size) fail_input("index {} leaves an axis of {}", at, size);
  return at < 0 ? at + size : at;
}

[[noreturn]] void fail_fit(const Shape& indices, const Shape& data) {
  fail_input("indices {} do not fit data {}", format_shape(indices), format_shape(data));
}

void require_small(int64_t count) {
  if (count > kTableLimit) fail_unsupported("a table of {} places is too large", count);
}

// GatherND and ScatterND: the last axis of the indices runs over the axes of the data behind the
// first `batch` ones, which both have in common.
Places slice_places(NodeContext& c, size_t batch) {
  const Shape data = c.shape(0), where = c.shape(1);
  if (where.size() <= batch || batch + static_cast<size_t>(where.back()) > data.size())
    fail_fit(where, data);
  const auto depth = static_cast<size_t>(where.back());
  Places places;
  int64_t batches = 1;
  for (size_t k = 0; k < data.size(); ++k) {
    if (k < batch && where[k] != data[k]) fail_fit(where, data);
    if (k < batch) batches = checked_mul(batches, data[k]);
    int64_t& part = k < batch + depth ? places.row_count : places.width;
    part = checked_mul(part, data[k]);
  }
  const int64_t count = element_count(Shape(where.begin(), where.end() - 1));
  require_small(count);
  require_small(places.row_count);
  const auto indices = c.required_constant(1, "the place");
  for (int64_t i = 0; i < count; ++i) {
    int64_t row = i / (count / batches);
    for (size_t k = 0; k < depth; ++k) {
      const int64_t size = data[batch + k];
      row = row * size + checked_index(indices[static_cast<size_t>(i) * depth + k], size);
    }
    places.rows.push_back(row);
  }
  return places;
}

// GatherElements and ScatterElements: indices replace the place along one axis.
Places element_places(NodeContext& c) {
  const Shape data = c.shape(0), where = c.shape(1);
  if (where.size() != data.size() || data.empty()) fail_fit(where, data);
  const size_t axis = normalize_axis(c.int_attr("axis", 0), data.size());
  for (size_t k = 0; k < data.size(); ++k)
    if (k != axis && where[k] > data[k]) fail_fit(where, data);
  Places places;
  places.row_count = element_count(data);
  require_small(places.row_count);
  const auto indices = c.required_constant(1, "the place");
  for (size_t i = 0; i < indices.size(); ++i) {
    int64_t row = 0, rest = static_cast<int64_t>(i), stride = 1;
    for (size_t k = data.size(); k-- > 0;) {
      const int64_t at = k == axis ? checked_index(indices[i], data[k]) : rest % where[k];
      row += at * stride;
      rest /= where[k];
      stride *= data[k];
    }
    places.rows.push_back(row);
  }
  return places;
}

TensorId row_numbers(NodeContext& c, const std::vector<int64_t>& rows) {
  return c.make_constant({DType::I64, {static_cast<int64_t>(rows.size())}}, [&](int64_t i) {
    return static_cast<double>(rows[static_cast<size_t>(i)]);
  });
}

void gather(NodeContext& c, const Places& places, const Shape& shape) {
  const TensorId table = c.reshape(c.in(0), {places.row_count, places.width}, "table");
  const TensorId rows =
      c.emit(OpKind::Gather, AxisAttrs{0}, {table, row_numbers(c, places.rows)}, "rows");
  c.out(0, c.reshape(rows, shape));
}

void gather_nd(NodeContext& c) {
  const int64_t batch = c.int_attr("batch_dims", 0);
  if (batch < 0) fail_input("batch_dims is {}", batch);
  const Places places = slice_places(c, static_cast<size_t>(batch));
  const Shape data = c.shape(0), where = c.shape(1);
  Shape shape(where.begin(), where.end() - 1);
  shape.insert(shape.end(), data.begin() + batch + where.back(), data.end());
  gather(c, places, shape);
}

// Data cut to the indices in all axes but one, as places along that axis need them.
TensorId cut_to_indices(NodeContext& c, size_t axis) {
  const Shape data = c.shape(0), where = c.shape(1);
  if (where.size() != data.size() || data.empty()) fail_fit(where, data);
  SliceAttrs attrs{Ints(data.size(), 0), Ints(data.size(), 1), where};
  attrs.size[axis] = data[axis];
  for (size_t k = 0; k < data.size(); ++k)
    if (attrs.size[k] > data[k]) fail_fit(where, data);
  return attrs.size == data ? c.in(0) : c.emit(OpKind::Slice, attrs, {c.in(0)}, "cut");
}

void gather_elements(NodeContext& c) {
  if (c.importer().value_of(c.required(1))) return gather(c, element_places(c), c.shape(1));
  const size_t axis = normalize_axis(c.int_attr("axis", 0), c.rank(0));
  c.out(0, c.emit(OpKind::GatherElements, AxisAttrs{static_cast<int64_t>(axis)},
                  {cut_to_indices(c, axis), c.in(1)}));
}

// For each row, which one of the updates is written there last; and whether one is, if not always.
std::pair<TensorId, TensorId> written_rows(NodeContext& c, const Places& places) {
  constexpr int64_t kNotWritten = -1;
  std::vector<int64_t> source(static_cast<size_t>(places.row_count), kNotWritten);
  for (size_t i = 0; i < places.rows.size(); ++i)
    source[static_cast<size_t>(places.rows[i])] = static_cast<int64_t>(i);
  const TensorId numbers = c.make_constant({DType::I64, {places.row_count}}, [&](int64_t i) {
    return static_cast<double>(std::max<int64_t>(0, source[static_cast<size_t>(i)]));
  });
  if (std::ranges::find(source, kNotWritten) == source.end()) return {numbers, TensorId()};
  const TensorId mask = c.make_constant({DType::Bool, {places.row_count, 1}}, [&](int64_t i) {
    return source[static_cast<size_t>(i)] == kNotWritten ? 0.0 : 1.0;
  });
  return {numbers, mask};
}

// Every row of the result is a row of the updates, the last one written there, or one of the data.
void scatter(NodeContext& c, const Places& places) {
  if (c.string_attr("reduction", "none") != "none")
    fail_unsupported("a reduction while scattering");
  const Shape data = c.shape(0), updates = c.shape(2);
  const auto count = static_cast<int64_t>(places.rows.size());
  if (element_count(updates) != checked_mul(count, places.width))
    fail_input("updates {} do not fit {} rows of {}", format_shape(updates), count, places.width);
  if (element_count(updates) == 0) return c.out(0, c.in(0));
  c.claim_work(4 * places.row_count);
  const auto [numbers, mask] = written_rows(c, places);
  const TensorId given = c.reshape(c.in(2), {count, places.width}, "updates");
  TensorId rows = c.emit(OpKind::Gather, AxisAttrs{0}, {given, numbers}, "written");
  if (mask.valid()) {
    const TensorId kept = c.reshape(c.in(0), {places.row_count, places.width}, "table");
    rows = c.emit(OpKind::Where, NoAttrs{}, {mask, rows, kept}, "rows");
  }
  c.out(0, c.reshape(rows, data));
}

void scatter_nd(NodeContext& c) { scatter(c, slice_places(c, 0)); }

// PyTorch writes scatter_add below opset 16, and index_add in versions 1 at all of them, as a
// scatter into zeros that is added: what meets in one place is lost in the file, but meant.
bool is_meant_to_add(NodeContext& c) {
  if (!c.importer().is_only_added_by_pytorch(c.node().outputs[0])) return false;
  const auto* data = c.importer().value_of(c.required(0));
  return data && std::ranges::all_of(*data, [](double value) { return value == 0; });
}

void scatter_elements(NodeContext& c) {
  std::string reduction = c.string_attr("reduction", "none");
  const bool meant = reduction == "none" && is_meant_to_add(c);
  if (reduction == "none" && c.importer().value_of(c.required(1))) {
    const Places places = element_places(c);
    if (!meant || std::set(places.rows.begin(), places.rows.end()).size() == places.rows.size())
      return scatter(c, places);
  }
  if (meant) reduction = "add";
  if (reduction != "none" && reduction != "add")
    fail_unsupported("reduction \"{}\" while scattering", reduction);
  const size_t axis = normalize_axis(c.int_attr("axis", 0), c.rank(0));
  const Shape data = c.shape(0), where = c.shape(1);
  for (size_t k = 0; k < std::min(data.size(), where.size()); ++k)
    if (k != axis && data[k] != where[k])
      fail_unsupported("scattering to a part of the data: indices {}, data {}", format_shape(where),
                       format_shape(data));
  constexpr int64_t kFirstThatAdds = 16;
  if (reduction == "none" && c.opset() < kFirstThatAdds)
    c.importer().note_once(
        "where indices of a ScatterElements meet, one of the values counts; exporters write "
        "scatter_add so below opset 16: export with opset 16 or later if they may meet");
  c.out(0, c.emit(OpKind::ScatterElements,
                  ScatterAttrs{static_cast<int64_t>(axis), reduction == "add"},
                  {c.in(0), c.in(1), c.in(2)}));
}

}  // namespace

void add_indexing_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"GatherElements", gather_elements}, {"GatherND", gather_nd},
      {"Scatter", scatter_elements},       {"ScatterElements", scatter_elements},
      {"ScatterND", scatter_nd},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
