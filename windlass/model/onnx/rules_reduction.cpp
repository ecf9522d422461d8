// Import rules: reductions, extremes and running sums along axes.

#include <set>
#include <string_view>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// Axes of a reduction: an attribute, or since opset 18 (13 for ReduceSum) an input.
Ints reduction_axes(NodeContext& c) {
  Ints axes;
  bool given = false;
  if (c.has_attr("axes")) {
    axes = c.ints_attr("axes", {});
    given = true;
  } else if (c.has(1)) {
    axes = c.required_ints(1, "the list of axes");
    given = !axes.empty();
  }
  if (!given && c.int_attr("noop_with_empty_axes", 0) != 0) return {};
  std::set<int64_t> sorted;
  if (!given)
    for (size_t i = 0; i < c.rank(0); ++i) sorted.insert(static_cast<int64_t>(i));
  for (int64_t axis : axes) sorted.insert(static_cast<int64_t>(normalize_axis(axis, c.rank(0))));
  return Ints(sorted.begin(), sorted.end());
}

template <ReduceFn fn>
void reduce(NodeContext& c) {
  const Ints axes = reduction_axes(c);
  if (axes.empty()) return c.out(0, c.in(0));
  TensorId x = c.in(0);
  if (c.type(0).dtype == DType::Bool) x = c.emit(OpKind::Cast, CastAttrs{DType::I64}, {x}, "count");
  c.out(0, c.emit(OpKind::Reduce, ReduceAttrs{fn, axes, c.int_attr("keepdims", 1) != 0}, {x}));
}

void reduce_log_sum(NodeContext& c) {
  const Ints axes = reduction_axes(c);
  const TensorId sum =
      c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, axes, c.int_attr("keepdims", 1) != 0},
             {c.in(0)}, "sum");
  c.out(0, c.unary(UnaryFn::Log, sum));
}

// The other way round along one axis.
TensorId reversed(NodeContext& c, TensorId x, int64_t axis, std::string_view part) {
  const Shape shape = c.builder().shape(x);
  SliceAttrs attrs{Ints(shape.size(), 0), Ints(shape.size(), 1), shape};
  const auto i = static_cast<size_t>(axis);
  if (shape[i] < 2) return x;
  attrs.start[i] = shape[i] - 1;
  attrs.step[i] = -1;
  return c.emit(OpKind::Slice, attrs, {x}, part);
}

void arg_extreme(NodeContext& c, bool minimum) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", 0), c.rank(0)));
  const bool last = c.int_attr("select_last_index", 0) != 0;
  TensorId x = c.in(0);
  if (minimum) x = c.unary(UnaryFn::Neg, x, 0, 0, "negated");
  if (last) x = reversed(c, x, axis, "reversed");
  TensorId index = c.emit(OpKind::ArgMax, AxisAttrs{axis}, {x});
  if (last) {
    const auto end = static_cast<double>(c.shape(0)[static_cast<size_t>(axis)] - 1);
    index = c.unary(UnaryFn::Affine, index, -1, end, "from_end");
  }
  if (c.int_attr("keepdims", 1) == 0) {
    Shape shape = c.shape(0);
    shape.erase(shape.begin() + axis);
    index = c.reshape(index, shape, "index");
  }
  c.out(0, index);
}
void arg_max(NodeContext& c) { arg_extreme(c, false); }
void arg_min(NodeContext& c) { arg_extreme(c, true); }

void cum_sum(NodeContext& c) {
  const Ints given = c.required_ints(1, "the axis");
  if (given.size() != 1) fail_input("axis has {} values, expected 1", given.size());
  const auto axis = static_cast<int64_t>(normalize_axis(given[0], c.rank(0)));
  const bool reverse = c.int_attr("reverse", 0) != 0;
  TensorId x = c.in(0);
  if (reverse) x = reversed(c, x, axis, "reversed");
  x = c.emit(OpKind::CumSum, AxisAttrs{axis}, {x});
  if (reverse) x = reversed(c, x, axis, "in_order");
  // Without the element itself.
  if (c.int_attr("exclusive", 0) != 0) x = c.binary(BinaryFn::Sub, x, c.in(0), "before");
  c.out(0, x);
}

// The number of values is an attribute before opset 10.
void top_k(NodeContext& c) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", -1), c.rank(0)));
  Ints k = {c.int_attr("k", 0)};
  if (c.opset() >= 10) k = c.required_ints(1, "how many are chosen");
  if (k.size() != 1) fail_input("k has {} values, expected 1", k.size());
  const auto found =
      c.emit_all(OpKind::TopK, TopKAttrs{axis, k[0], c.int_attr("largest", 1) != 0}, {c.in(0)});
  c.out(0, found[0]);
  c.out(1, found[1]);
}

// One at the first of the largest values along an axis, else 0; before opset 13 along all axes from
// the given one on, flattened.
void hardmax(NodeContext& c) {
  const Shape shape = c.shape(0);
  const bool flat = c.opset() < 13;
  auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", flat ? 1 : -1), shape.size()));
  TensorId x = c.in(0);
  if (flat) {
    const int64_t rows = element_count(Shape(shape.begin(), shape.begin() + axis));
    x = c.reshape(x, {rows, element_count(Shape(shape.begin() + axis, shape.end()))}, "rows");
    axis = 1;
  }
  Shape places(c.builder().shape(x).size(), 1);
  places[static_cast<size_t>(axis)] = c.builder().shape(x)[static_cast<size_t>(axis)];
  const TensorId numbers =
      c.make_constant({DType::I64, places}, [](int64_t i) { return static_cast<double>(i); });
  const TensorId index = c.emit(OpKind::ArgMax, AxisAttrs{axis}, {x}, "index");
  const TensorId hit = c.binary(BinaryFn::Equal, index, numbers, "hit");
  c.out(0, c.reshape(c.emit(OpKind::Cast, CastAttrs{c.type(0).dtype}, {hit}, "ones"), shape));
}

}  // namespace

void add_reduction_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"ArgMax", arg_max},
      {"ArgMin", arg_min},
      {"CumSum", cum_sum},
      {"Hardmax", hardmax},
      {"ReduceL1", reduce<ReduceFn::L1>},
      {"ReduceL2", reduce<ReduceFn::L2>},
      {"ReduceLogSum", reduce_log_sum},
      {"ReduceLogSumExp", reduce<ReduceFn::LogSumExp>},
      {"ReduceMax", reduce<ReduceFn::Max>},
      {"ReduceMean", reduce<ReduceFn::Mean>},
      {"ReduceMin", reduce<ReduceFn::Min>},
      {"ReduceProd", reduce<ReduceFn::Prod>},
      {"ReduceSum", reduce<ReduceFn::Sum>},
      {"ReduceSumSquare", reduce<ReduceFn::SumSquare>},
      {"TopK", top_k},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
