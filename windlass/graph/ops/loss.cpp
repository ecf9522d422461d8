// Losses: scalars, means over all rows, in fp32 whatever the type of the prediction.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

Shape rows_shape(const Signature& s) {
  Shape shape = s.shape(0);
  shape.erase(shape.begin() +
              static_cast<int64_t>(normalize_axis(s.as<CrossEntropyAttrs>().axis, shape.size())));
  return shape;
}

std::vector<TensorType> infer_cross_entropy(const Signature& s) {
  require_float(s, 0);
  require_integer(s, 1);
  require_shape(s, 1, rows_shape(s), "labels");
  if (s.shape(0)[static_cast<size_t>(s.as<CrossEntropyAttrs>().axis)] == 0)
    fail_input("logits {} have no classes", format_shape(s.shape(0)));
  return {{statistic_dtype(s.input(0).dtype), {}}};
}

// log sum exp of each row: with it the gradient is exp(logits - lse) - onehot, in one sweep. And
// the number of rows that count, over all pieces of a split: what the mean divides by.
std::vector<TensorType> cross_entropy_auxiliaries(const Signature& s) {
  const DType dtype = statistic_dtype(s.input(0).dtype);
  return {{dtype, rows_shape(s)}, {dtype, {}}};
}

LoopNest cross_entropy_loops(const Signature& s) {
  const auto axis = static_cast<size_t>(s.as<CrossEntropyAttrs>().axis);
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  OperandMap rows;
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    if (i == axis) {
      nest.loops[i].role = LoopRole::Coupled;
      nest.loops[i].coupling = {.forward = 3, .backward = 0};  // maximum, sum, logit of the label
    } else {
      nest.loops[i].role = LoopRole::Reduced;
      rows.push_back({.loop = static_cast<int32_t>(i)});
    }
  }
  nest.inputs = {aligned_map(s.shape(0).size()), rows};
  nest.outputs = {{}};
  nest.auxiliaries = {rows, {}};
  return nest;
}

void cross_entropy_piece(const Signature& whole, OpPiece& piece) {
  const auto axis = static_cast<size_t>(whole.as<CrossEntropyAttrs>().axis);
  piece.facts.rows = piece.input_regions[0][axis];
}

Exchange cross_entropy_exchange(const Signature& s, Pass pass, const std::vector<bool>&) {
  if (pass == Pass::Backward) return {};
  return {statistics_type(s, rows_shape(s), 3), MergeFn::Softmax, 1};
}

Arithmetic cross_entropy_arithmetic(const Signature& s) {
  return pointwise(elements(s.input(0)) * 4);
}

GradientRule cross_entropy_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  rule.inputs[0] = GradientSource::Computed;
  rule.saved = {saved_input(0), saved_input(1), saved_aux(0), saved_aux(1)};
  rule.arithmetic = pointwise(elements(s.input(0)) * 3);
  return rule;
}

std::vector<TensorType> infer_mse(const Signature& s) {
  require_float(s, 0);
  require_shape(s, 1, s.shape(0), "target");
  return {{statistic_dtype(s.input(0).dtype), {}}};
}

LoopNest mse_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  for (LoopDim& loop : nest.loops) loop.role = LoopRole::Reduced;
  nest.inputs.assign(2, aligned_map(s.shape(0).size()));
  nest.outputs = {{}};
  return nest;
}

void mse_piece(const Signature& whole, OpPiece& piece) {
  piece.facts.mean_count = elements(whole.input(0));
}

Arithmetic mse_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 3); }

GradientRule mse_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  rule.inputs[0] = rule.inputs[1] = GradientSource::Computed;
  rule.saved = {saved_input(0), saved_input(1)};
  rule.arithmetic = pointwise(elements(s.input(0)) * 3);
  return rule;
}

}  // namespace

std::vector<OpInfo> loss_ops() {
  return {
      {.kind = OpKind::CrossEntropy,
       .name = "CrossEntropy",
       .family = OpFamily::Loss,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_cross_entropy,
       .auxiliaries = cross_entropy_auxiliaries,
       .loops = cross_entropy_loops,
       .piece = cross_entropy_piece,
       .exchange = cross_entropy_exchange,
       .arithmetic = cross_entropy_arithmetic,
       .gradient = cross_entropy_gradient},
      {.kind = OpKind::MeanSquaredError,
       .name = "MeanSquaredError",
       .family = OpFamily::Loss,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_mse,
       .loops = mse_loops,
       .piece = mse_piece,
       .arithmetic = mse_arithmetic,
       .gradient = mse_gradient},
  };
}

}  // namespace windlass::ops
