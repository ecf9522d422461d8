// Reductions over axes, cumulative sums and the index of the maximum.

#include <algorithm>

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

bool is_reduced(const ReduceAttrs& attrs, size_t axis) {
  return std::find(attrs.axes.begin(), attrs.axes.end(), static_cast<int64_t>(axis)) !=
         attrs.axes.end();
}

std::vector<TensorType> infer_reduce(const Signature& s) {
  const auto& a = s.as<ReduceAttrs>();
  const Shape& x = s.shape(0);
  for (size_t i = 0; i < a.axes.size(); ++i) {
    normalize_axis(a.axes[i], x.size());
    if (a.axes[i] < 0 || (i > 0 && a.axes[i] <= a.axes[i - 1]))
      fail_input("axes {} are not distinct", format_shape(a.axes));
  }
  if (s.input(0).dtype == DType::Bool) fail_input("cannot reduce booleans");
  Shape shape;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!is_reduced(a, i))
      shape.push_back(x[i]);
    else if (a.keep_dims)
      shape.push_back(1);
  }
  return {{s.input(0).dtype, shape}};
}

// Sums (and what is a sum but for a scale or power afterwards is not) can be split with partial
// sums.
LoopNest reduce_loops(const Signature& s) {
  const auto& a = s.as<ReduceAttrs>();
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  OperandMap output;
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    if (!is_reduced(a, i)) {
      output.push_back({.loop = static_cast<int32_t>(i)});
      continue;
    }
    if (a.keep_dims) output.push_back({});
    LoopDim& loop = nest.loops[i];
    switch (a.fn) {
      case ReduceFn::Mean:
        // A mean of integers is rounded once.
        loop.role = is_float(s.input(0).dtype) ? LoopRole::Reduced : LoopRole::Whole;
        break;
      case ReduceFn::Sum:
      case ReduceFn::L1:
      case ReduceFn::SumSquare: loop.role = LoopRole::Reduced; break;
      case ReduceFn::Max:
        loop.role = LoopRole::Reduced;
        loop.combine = CombineFn::Max;
        loop.coupling.backward = 1;
        break;
      case ReduceFn::Min:
        loop.role = LoopRole::Reduced;
        loop.combine = CombineFn::Min;
        loop.coupling.backward = 1;
        break;
      case ReduceFn::Prod:
      case ReduceFn::L2:
      case ReduceFn::LogSumExp: loop.role = LoopRole::Whole; break;
    }
  }
  nest.inputs = {aligned_map(s.shape(0).size())};
  nest.outputs = {output};
  return nest;
}

void reduce_piece(const Signature& whole, OpPiece& piece) {
  if (whole.as<ReduceAttrs>().fn == ReduceFn::Mean)
    piece.facts.mean_count = elements(whole.input(0)) / elements(whole.outputs[0]);
}

// How many elements equal the maximum and share its gradient.
Exchange reduce_exchange(const Signature& s, Pass pass, const std::vector<bool>&) {
  const ReduceFn fn = s.as<ReduceAttrs>().fn;
  if (pass != Pass::Backward || (fn != ReduceFn::Max && fn != ReduceFn::Min)) return {};
  return {statistics_type(s, s.outputs[0].shape, 1)};
}

Arithmetic reduce_arithmetic(const Signature& s) { return pointwise(elements(s.input(0))); }

GradientRule reduce_gradient(const Signature& s, const std::vector<bool>&) {
  if (!is_float(s.input(0).dtype)) return no_gradient(1);
  GradientRule rule;
  rule.inputs = {GradientSource::Computed};
  switch (s.as<ReduceAttrs>().fn) {
    case ReduceFn::Sum:
    case ReduceFn::Mean: break;
    case ReduceFn::L1:
    case ReduceFn::SumSquare: rule.saved = {saved_input(0)}; break;
    case ReduceFn::Max:
    case ReduceFn::Min:
    case ReduceFn::Prod:
    case ReduceFn::L2:
    case ReduceFn::LogSumExp: rule.saved = {saved_input(0), saved_output(0)}; break;
  }
  rule.arithmetic = pointwise(elements(s.input(0)));
  return rule;
}

std::vector<TensorType> infer_cumsum(const Signature& s) {
  normalize_axis(s.as<AxisAttrs>().axis, s.shape(0).size());
  return {s.input(0)};
}

LoopNest axis_whole_loops(const Signature& s) {
  const auto axis = static_cast<size_t>(s.as<AxisAttrs>().axis);
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  nest.loops[axis].role = LoopRole::Whole;
  OperandMap map = aligned_map(s.shape(0).size());
  map[axis] = {};
  nest.inputs = {map};
  nest.outputs = {map};
  return nest;
}

GradientRule cumsum_gradient(const Signature& s, const std::vector<bool>&) {
  if (!is_float(s.input(0).dtype)) return no_gradient(1);
  return {.inputs = {GradientSource::Computed}, .saved = {}, .arithmetic = reduce_arithmetic(s)};
}

std::vector<TensorType> infer_argmax(const Signature& s) {
  Shape shape = s.shape(0);
  const size_t axis = normalize_axis(s.as<AxisAttrs>().axis, shape.size());
  if (shape[axis] == 0) fail_input("axis {} of {} is empty", axis, format_shape(shape));
  shape[axis] = 1;
  return {{DType::I64, shape}};
}

std::vector<TensorType> infer_top_k(const Signature& s) {
  const auto& attrs = s.as<TopKAttrs>();
  Shape shape = s.shape(0);
  const size_t axis = normalize_axis(attrs.axis, shape.size());
  if (attrs.k < 0 || attrs.k > shape[axis])
    fail_input("cannot choose {} of {} along axis {}", attrs.k, shape[axis], axis);
  shape[axis] = attrs.k;
  return {{s.input(0).dtype, shape}, {DType::I64, shape}};
}

LoopNest top_k_loops(const Signature& s) {
  const auto axis = static_cast<size_t>(s.as<TopKAttrs>().axis);
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  nest.loops[axis].role = LoopRole::Whole;
  OperandMap map = aligned_map(s.shape(0).size());
  map[axis] = {};
  nest.inputs = {map};
  nest.outputs = {map, map};
  return nest;
}

GradientRule top_k_gradient(const Signature& s, const std::vector<bool>&) {
  if (!is_float(s.input(0).dtype)) return no_gradient(1);
  return {.inputs = {GradientSource::Computed},
          .saved = {saved_output(1)},
          .arithmetic = pointwise(elements(s.outputs[0]))};
}

}  // namespace

std::vector<OpInfo> reduction_ops() {
  return {
      {.kind = OpKind::Reduce,
       .name = "Reduce",
       .family = OpFamily::Reduction,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_reduce,
       .loops = reduce_loops,
       .piece = reduce_piece,
       .exchange = reduce_exchange,
       .arithmetic = reduce_arithmetic,
       .gradient = reduce_gradient},
      {.kind = OpKind::CumSum,
       .name = "CumSum",
       .family = OpFamily::Reduction,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_cumsum,
       .loops = axis_whole_loops,
       .arithmetic = reduce_arithmetic,
       .gradient = cumsum_gradient},
      {.kind = OpKind::ArgMax,
       .name = "ArgMax",
       .family = OpFamily::Reduction,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_argmax,
       .loops = axis_whole_loops,
       .arithmetic = reduce_arithmetic},
      {.kind = OpKind::TopK,
       .name = "TopK",
       .family = OpFamily::Reduction,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_top_k,
       .loops = top_k_loops,
       .arithmetic = reduce_arithmetic,
       .gradient = top_k_gradient},
  };
}

}  // namespace windlass::ops
