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

void arg_extreme(NodeContext& c, bool minimum) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", 0), c.rank(0)));
  TensorId x = c.in(0);
  if (minimum) x = c.unary(UnaryFn::Neg, x, 0, 0, "negated");
  TensorId index = c.emit(OpKind::ArgMax, AxisAttrs{axis}, {x});
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
  if (c.int_attr("exclusive", 0) != 0 || c.int_attr("reverse", 0) != 0)
    fail_unsupported("exclusive and reverse sums");
  const Ints axis = c.required_ints(1, "the axis");
  if (axis.size() != 1) fail_input("axis has {} values, expected 1", axis.size());
  c.out(0, c.emit(OpKind::CumSum,
                  AxisAttrs{static_cast<int64_t>(normalize_axis(axis[0], c.rank(0)))}, {c.in(0)}));
}

}  // namespace

void add_reduction_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"ArgMax", arg_max},
      {"ArgMin", arg_min},
      {"CumSum", cum_sum},
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
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
