// Matrix products. With loops m, n, k and batch loops, each operand has two of m, n, k, so the
// three products of training (y, dx, dw) are the same nest with another loop reduced.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

struct MatMulSizes {
  Shape batch;
  int64_t m, n, k;
};

MatMulSizes matmul_sizes(const Signature& s) {
  const auto& attrs = s.as<MatMulAttrs>();
  const Shape& a = s.shape(0);
  const Shape& b = s.shape(1);
  if (a.size() < 2 || b.size() < 2)
    fail_input("operands are {} and {}, expected at least two dimensions each", format_shape(a),
               format_shape(b));
  const auto last = [](const Shape& shape, size_t back) { return shape[shape.size() - back]; };
  MatMulSizes sizes;
  sizes.batch = broadcast_shapes(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  sizes.m = last(a, attrs.transpose_a ? 1 : 2);
  sizes.k = last(a, attrs.transpose_a ? 2 : 1);
  sizes.n = last(b, attrs.transpose_b ? 2 : 1);
  const int64_t k = last(b, attrs.transpose_b ? 1 : 2);
  if (k != sizes.k)
    fail_input("the inner dimensions of {} and {} differ: {} and {}", format_shape(a),
               format_shape(b), sizes.k, k);
  return sizes;
}

std::vector<TensorType> infer_matmul(const Signature& s) {
  require_float(s, 0);
  require_float(s, 1);
  MatMulSizes sizes = matmul_sizes(s);
  Shape shape = sizes.batch;
  shape.push_back(sizes.m);
  shape.push_back(sizes.n);
  return {{s.input(0).dtype, shape}};
}

LoopNest matmul_loops(const Signature& s) {
  const auto& attrs = s.as<MatMulAttrs>();
  const MatMulSizes sizes = matmul_sizes(s);
  LoopNest nest;
  for (size_t i = 0; i < sizes.batch.size(); ++i)
    nest.loops.push_back({.name = "b" + std::to_string(i), .size = sizes.batch[i]});
  const auto m = static_cast<int32_t>(nest.loops.size());
  nest.loops.push_back({.name = "m", .size = sizes.m});
  nest.loops.push_back({.name = "n", .size = sizes.n});
  nest.loops.push_back({.name = "k", .size = sizes.k, .role = LoopRole::Reduced});
  const int32_t n = m + 1, k = m + 2;
  const auto operand = [&](const Shape& shape, int32_t row, int32_t column) {
    OperandMap map = broadcast_map(Shape(shape.begin(), shape.end() - 2), sizes.batch);
    map.push_back({.loop = row});
    map.push_back({.loop = column});
    return map;
  };
  nest.inputs.push_back(attrs.transpose_a ? operand(s.shape(0), k, m) : operand(s.shape(0), m, k));
  nest.inputs.push_back(attrs.transpose_b ? operand(s.shape(1), n, k) : operand(s.shape(1), k, n));
  nest.outputs.push_back(aligned_map(sizes.batch.size() + 2));
  return nest;
}

Arithmetic matmul_arithmetic(const Signature& s) {
  const MatMulSizes sizes = matmul_sizes(s);
  double count =
      static_cast<double>(sizes.m) * static_cast<double>(sizes.n) * static_cast<double>(sizes.k);
  for (int64_t size : sizes.batch) count *= static_cast<double>(size);
  return {count, 0};
}

GradientRule matmul_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule;
  rule.inputs = {GradientSource::Computed, GradientSource::Computed};
  if (wanted[1]) rule.saved.push_back(saved_input(0));
  if (wanted[0]) rule.saved.push_back(saved_input(1));
  const Arithmetic forward = matmul_arithmetic(s);
  rule.arithmetic.multiply_adds =
      forward.multiply_adds * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
  return rule;
}

struct LinearSizes {
  int64_t k, n;
};

LinearSizes linear_sizes(const Signature& s) {
  require_rank(s, 1, 2);
  const bool input_major = s.as<LinearAttrs>().input_major;
  const Shape& w = s.shape(1);
  return {w[input_major ? 0 : 1], w[input_major ? 1 : 0]};
}

std::vector<TensorType> infer_linear(const Signature& s) {
  require_float(s, 0);
  require_float(s, 1);
  const LinearSizes sizes = linear_sizes(s);
  Shape shape = s.shape(0);
  if (shape.empty() || shape.back() != sizes.k)
    fail_input("input {} does not fit the weight {}: its last dimension should be {}",
               format_shape(shape), format_shape(s.shape(1)), sizes.k);
  if (s.has_input(2)) require_shape(s, 2, {sizes.n}, "bias");
  shape.back() = sizes.n;
  return {{s.input(0).dtype, shape}};
}

LoopNest linear_loops(const Signature& s) {
  const LinearSizes sizes = linear_sizes(s);
  const Shape& x = s.shape(0);
  LoopNest nest;
  for (size_t i = 0; i + 1 < x.size(); ++i)
    nest.loops.push_back({.name = "m" + std::to_string(i), .size = x[i]});
  const auto n = static_cast<int32_t>(nest.loops.size());
  nest.loops.push_back({.name = "n", .size = sizes.n});
  nest.loops.push_back({.name = "k", .size = sizes.k, .role = LoopRole::Reduced});
  OperandMap input = aligned_map(x.size());
  input.back().loop = n + 1;
  nest.inputs.push_back(input);
  if (s.as<LinearAttrs>().input_major)
    nest.inputs.push_back({{.loop = n + 1}, {.loop = n}});
  else
    nest.inputs.push_back({{.loop = n}, {.loop = n + 1}});
  if (s.inputs.size() > 2)
    nest.inputs.push_back(s.has_input(2) ? OperandMap{{.loop = n}} : OperandMap{});
  nest.outputs.push_back(aligned_map(x.size()));
  return nest;
}

Arithmetic linear_arithmetic(const Signature& s) {
  const Shape& x = s.shape(0);
  double outputs = static_cast<double>(linear_sizes(s).n);
  for (size_t i = 0; i + 1 < x.size(); ++i) outputs *= static_cast<double>(x[i]);
  return {outputs * static_cast<double>(linear_sizes(s).k), s.has_input(2) ? outputs : 0};
}

// x W + b: dx needs W, dW needs x, db neither.
GradientRule weighted_gradient(const Signature& s, const std::vector<bool>& wanted,
                               const Arithmetic& forward) {
  GradientRule rule = no_gradient(s.inputs.size());
  rule.inputs[0] = rule.inputs[1] = GradientSource::Computed;
  if (s.has_input(2) && is_float(s.input(2).dtype)) rule.inputs[2] = GradientSource::Computed;
  if (wanted[1]) rule.saved.push_back(saved_input(0));
  if (wanted[0]) rule.saved.push_back(saved_input(1));
  rule.arithmetic.multiply_adds =
      forward.multiply_adds * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
  rule.arithmetic.pointwise = forward.pointwise;
  return rule;
}

GradientRule linear_gradient(const Signature& s, const std::vector<bool>& wanted) {
  return weighted_gradient(s, wanted, linear_arithmetic(s));
}

// A row for each of the experts that are chosen for a token: y[t, c] = W[chosen[t, c]] x[t, c], or
// x[t] where all rows of a token are alike.
std::vector<TensorType> infer_grouped_linear(const Signature& s) {
  if (s.shape(0).size() != 2) require_rank(s, 0, 3);
  require_rank(s, 1, 3);
  require_integer(s, 2);
  require_rank(s, 2, 2);
  const Shape &x = s.shape(0), &w = s.shape(1), &chosen = s.shape(2);
  if (x.back() != w[2])
    fail_input("input {} does not fit the expert weights {}", format_shape(x), format_shape(w));
  if (x[0] != chosen[0] || (x.size() == 3 && x[1] != chosen[1]))
    fail_input("input {} does not fit the chosen experts {}", format_shape(x),
               format_shape(chosen));
  return {{s.input(0).dtype, {chosen[0], chosen[1], w[1]}}};
}

// The expert loop is reduced: a device that holds some of the experts contributes their rows and
// zeros elsewhere. Which rows those are is known only at run time.
LoopNest grouped_linear_loops(const Signature& s) {
  const Shape& w = s.shape(1);
  LoopNest nest;
  nest.loops = {{.name = "token", .size = s.shape(0)[0]},
                {.name = "n", .size = w[1]},
                {.name = "k", .size = w[2], .role = LoopRole::Reduced},
                {.name = "expert", .size = w[0], .role = LoopRole::Reduced}};
  const OperandMap x = s.shape(0).size() == 2 ? OperandMap{{.loop = 0}, {.loop = 2}}
                                              : OperandMap{{.loop = 0}, {}, {.loop = 2}};
  nest.inputs = {x, {{.loop = 3}, {.loop = 1}, {.loop = 2}}, {{.loop = 0}, {}}};
  nest.outputs = {{{.loop = 0}, {}, {.loop = 1}}};
  return nest;
}

void grouped_linear_piece(const Signature&, OpPiece& piece) {
  piece.facts.rows = piece.input_regions[1][0];
}

Arithmetic grouped_linear_arithmetic(const Signature& s) {
  const Shape& w = s.shape(1);
  return {elements(s.input(2)) * static_cast<double>(w[1]) * static_cast<double>(w[2]), 0};
}

GradientRule grouped_linear_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = weighted_gradient(s, wanted, grouped_linear_arithmetic(s));
  rule.inputs[2] = GradientSource::None;
  rule.saved.push_back(saved_input(2));
  return rule;
}

// Rows in slots of their experts (SlotAttrs): y[e, s] = W[e] x[e, s] where slot s is used, of which
// `used` [e, blocks] tells; zero elsewhere.
std::vector<TensorType> infer_slot_linear(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 3);
  require_float(s, 1);
  require_rank(s, 1, 3);
  require_integer(s, 2);
  require_rank(s, 2, 2);
  const Shape &x = s.shape(0), &w = s.shape(1), &used = s.shape(2);
  if (x[0] != w[0] || x[2] != w[2])
    fail_input("input {} does not fit the expert weights {}", format_shape(x), format_shape(w));
  if (used[0] != x[0] || used[1] < 1 || x[1] % used[1] != 0)
    fail_input("input {} does not fit the counts of used slots {}", format_shape(x),
               format_shape(used));
  return {{s.input(0).dtype, {x[0], x[1], w[1]}}};
}

LoopNest slot_linear_loops(const Signature& s) {
  const Shape &w = s.shape(1), &used = s.shape(2);
  const int64_t slots = s.shape(0)[1] / used[1];
  const AxisMap rows = {.loop = 1, .stride = slots, .window = slots};
  LoopNest nest;
  nest.loops = {{.name = "expert", .size = w[0]},
                {.name = "block", .size = used[1]},
                {.name = "n", .size = w[1]},
                {.name = "k", .size = w[2], .role = LoopRole::Reduced}};
  nest.inputs = {{{.loop = 0}, rows, {.loop = 3}},
                 {{.loop = 0}, {.loop = 2}, {.loop = 3}},
                 {{.loop = 0}, {.loop = 1}}};
  nest.outputs = {{{.loop = 0}, rows, {.loop = 2}}};
  return nest;
}

Arithmetic slot_linear_arithmetic(const Signature& s) {
  const Shape& w = s.shape(1);
  return {elements(s.input(0)) * s.as<SlotLinearAttrs>().filled * static_cast<double>(w[1]), 0};
}

GradientRule slot_linear_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = weighted_gradient(s, wanted, slot_linear_arithmetic(s));
  rule.inputs[2] = GradientSource::None;
  rule.saved.push_back(saved_input(2));
  return rule;
}

}  // namespace

std::vector<OpInfo> contraction_ops() {
  return {
      {.kind = OpKind::MatMul,
       .name = "MatMul",
       .family = OpFamily::Contraction,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_matmul,
       .loops = matmul_loops,
       .arithmetic = matmul_arithmetic,
       .gradient = matmul_gradient},
      {.kind = OpKind::Linear,
       .name = "Linear",
       .family = OpFamily::Contraction,
       .min_inputs = 2,
       .max_inputs = 3,
       .bias = 2,
       .infer = infer_linear,
       .loops = linear_loops,
       .arithmetic = linear_arithmetic,
       .gradient = linear_gradient},
      {.kind = OpKind::GroupedLinear,
       .name = "GroupedLinear",
       .family = OpFamily::Contraction,
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_grouped_linear,
       .loops = grouped_linear_loops,
       .piece = grouped_linear_piece,
       .arithmetic = grouped_linear_arithmetic,
       .gradient = grouped_linear_gradient},
      {.kind = OpKind::SlotLinear,
       .name = "SlotLinear",
       .family = OpFamily::Contraction,
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_slot_linear,
       .loops = slot_linear_loops,
       .arithmetic = slot_linear_arithmetic,
       .gradient = slot_linear_gradient},
  };
}

}  // namespace windlass::ops
