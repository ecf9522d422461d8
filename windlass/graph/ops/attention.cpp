// Softmax, fused attention and rotary position embedding.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

std::vector<TensorType> infer_softmax(const Signature& s) {
  require_float(s, 0);
  normalize_axis(s.as<SoftmaxAttrs>().axis, s.shape(0).size());
  return {s.input(0)};
}

LoopNest softmax_loops(const Signature& s) {
  LoopNest nest = broadcast_loops(s);
  LoopDim& loop = nest.loops[static_cast<size_t>(s.as<SoftmaxAttrs>().axis)];
  loop.role = LoopRole::Coupled;
  loop.coupling = {.forward = 2, .backward = 1};  // maximum and sum; sum of dy * y
  return nest;
}

Exchange softmax_exchange(const Signature& s, Pass pass, const std::vector<bool>&) {
  Shape rows = s.shape(0);
  rows.erase(rows.begin() + s.as<SoftmaxAttrs>().axis);
  if (pass == Pass::Backward) return {statistics_type(s, rows, 1)};
  return {statistics_type(s, rows, 2), MergeFn::Softmax, 1};
}

Arithmetic softmax_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 5); }

GradientRule softmax_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed},
          .saved = {saved_output(0)},
          .arithmetic = pointwise(elements(s.input(0)) * 4)};
}

std::vector<TensorType> infer_attention(const Signature& s) {
  for (size_t i = 0; i < 3; ++i) {
    require_float(s, i);
    require_rank(s, i, 4);
  }
  const Shape& q = s.shape(0);
  const Shape& k = s.shape(1);
  const Shape& v = s.shape(2);
  if (k[0] != q[0] || v[0] != q[0] || k[1] != v[1] || k[2] != v[2] || k[3] != q[3])
    fail_input("query {}, key {} and value {} do not fit each other", format_shape(q),
               format_shape(k), format_shape(v));
  if (k[1] == 0 || q[1] % k[1] != 0)
    fail_input("{} query heads cannot share {} key heads evenly", q[1], k[1]);
  if (s.has_input(3)) {
    const Shape scores = {q[0], q[1], q[2], k[2]};
    if (broadcast_shapes(s.shape(3), scores) != scores)
      fail_input("mask {} does not fit scores {}", format_shape(s.shape(3)), format_shape(scores));
  }
  return {{s.input(0).dtype, {q[0], q[1], q[2], v[3]}}};
}

std::vector<TensorType> attention_auxiliaries(const Signature& s) {
  const Shape& q = s.shape(0);
  return {{statistic_dtype(s.input(0).dtype), {q[0], q[1], q[2]}}};
}

// Heads are split by whole groups of query heads that share a key head. Splitting keys merges
// partial softmax results by their statistics (ring attention): a row of outputs, its maximum and
// its sum.
LoopNest attention_loops(const Signature& s) {
  const Shape& q = s.shape(0);
  const Shape& k = s.shape(1);
  const Shape& v = s.shape(2);
  const int64_t group = q[1] / k[1];
  LoopNest nest;
  nest.loops = {{.name = "batch", .size = q[0]},
                {.name = "head", .size = k[1]},
                {.name = "query", .size = q[2]},
                {.name = "key",
                 .size = k[2],
                 .role = LoopRole::Coupled,
                 .coupling = {.forward = group * (v[3] + 2), .backward = group * q[3]}},
                {.name = "depth", .size = q[3], .role = LoopRole::Whole},
                {.name = "width", .size = v[3], .role = LoopRole::Whole}};
  const AxisMap heads = {.loop = 1, .stride = group, .window = group};
  nest.inputs = {{{.loop = 0}, heads, {.loop = 2}, {.loop = 4}},
                 {{.loop = 0}, {.loop = 1}, {.loop = 3}, {.loop = 4}},
                 {{.loop = 0}, {.loop = 1}, {.loop = 3}, {.loop = 5}}};
  if (s.inputs.size() > 3) {
    OperandMap mask;
    if (s.has_input(3)) {
      const Shape& m = s.shape(3);
      const OperandMap full = {{.loop = 0}, heads, {.loop = 2}, {.loop = 3}};
      for (size_t i = 0; i < m.size(); ++i)
        mask.push_back(m[i] == 1 ? AxisMap{} : full[4 - m.size() + i]);
    }
    nest.inputs.push_back(mask);
  }
  nest.outputs = {{{.loop = 0}, heads, {.loop = 2}, {.loop = 5}}};
  nest.auxiliaries = {{{.loop = 0}, heads, {.loop = 2}}};
  return nest;
}

void attention_piece(const Signature& whole, OpPiece& piece) {
  const Region &q = piece.input_regions[0], &k = piece.input_regions[1];
  piece.facts.positions = q[2];
  piece.facts.keys = k[2];
  piece.facts.random = {q[0], q[1], q[2], k[2]};
  if (whole.has_input(3))
    piece.facts.mask_lacks_keys =
        k[2].size > 1 && (whole.shape(3).empty() || whole.shape(3).back() == 1);
}

// Forward: maximum, sum of exponentials and the output that is not yet divided by it. Backward: the
// gradient of the queries.
Exchange attention_exchange(const Signature& s, Pass pass, const std::vector<bool>& wanted) {
  const Shape& q = s.shape(0);
  const Shape rows = {q[0], q[1], q[2]};
  if (pass != Pass::Backward) {
    const int64_t width = s.shape(2)[3];
    return {statistics_type(s, rows, width + 2), MergeFn::Softmax, width + 1};
  }
  return wanted[0] ? Exchange{statistics_type(s, rows, q[3])} : Exchange{};
}

double score_count(const Signature& s) {
  const Shape& q = s.shape(0);
  return static_cast<double>(q[0]) * static_cast<double>(q[1]) * static_cast<double>(q[2]) *
         static_cast<double>(s.shape(1)[2]);
}

Arithmetic attention_arithmetic(const Signature& s) {
  const Shape& q = s.shape(0);
  const double scores = score_count(s);
  return {scores * static_cast<double>(q[3] + s.shape(2)[3]), scores * 6};
}

// Scores again, then dV = P' dO, dP = dO V', dQ = dS K, dK = dS' Q: five products to the two of
// forward.
GradientRule attention_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(s.inputs.size());
  for (size_t i = 0; i < s.inputs.size(); ++i)
    if (s.has_input(i) && is_float(s.input(i).dtype)) rule.inputs[i] = GradientSource::Computed;
  rule.saved = {saved_input(0), saved_input(1), saved_input(2)};
  if (s.has_input(3)) rule.saved.push_back(saved_input(3));
  const bool beyond_values = wanted[0] || wanted[1] || (wanted.size() > 3 && wanted[3]);
  if (beyond_values) rule.saved.push_back(saved_output(0));
  rule.saved.push_back(saved_aux(0));
  const Arithmetic forward = attention_arithmetic(s);
  const auto depth = static_cast<double>(s.shape(0)[3]);
  const auto width = static_cast<double>(s.shape(2)[3]);
  const double scores = score_count(s);
  rule.arithmetic.multiply_adds =
      scores * (depth + (wanted[2] ? width : 0) + (beyond_values ? width : 0) +
                (wanted[0] ? depth : 0) + (wanted[1] ? depth : 0));
  rule.arithmetic.pointwise = forward.pointwise * 2;
  return rule;
}

std::vector<TensorType> infer_rotary(const Signature& s) {
  const auto& a = s.as<RotaryAttrs>();
  require_float(s, 0);
  const Shape& x = s.shape(0);
  if (x.size() < 2)
    fail_input("input has shape {}, expected [..., position, depth]", format_shape(x));
  if (a.dims < 2 || a.dims % 2 != 0 || a.dims > x.back())
    fail_input("{} rotated dimensions, expected an even number from 2 to {}", a.dims, x.back());
  return {s.input(0)};
}

LoopNest rotary_loops(const Signature& s) {
  LoopNest nest = broadcast_loops(s);
  nest.loops.back().role = LoopRole::Whole;
  return nest;
}

void rotary_piece(const Signature& whole, OpPiece& piece) {
  piece.facts.positions = piece.output_regions[0][whole.shape(0).size() - 2];
}

Arithmetic rotary_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 3); }

GradientRule rotary_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed}, .saved = {}, .arithmetic = rotary_arithmetic(s)};
}

}  // namespace

std::vector<OpInfo> attention_ops() {
  return {
      {.kind = OpKind::Softmax,
       .name = "Softmax",
       .family = OpFamily::Attention,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_softmax,
       .loops = softmax_loops,
       .exchange = softmax_exchange,
       .arithmetic = softmax_arithmetic,
       .gradient = softmax_gradient},
      {.kind = OpKind::Attention,
       .name = "Attention",
       .family = OpFamily::Attention,
       .min_inputs = 3,
       .max_inputs = 4,
       .infer = infer_attention,
       .auxiliaries = attention_auxiliaries,
       .loops = attention_loops,
       .piece = attention_piece,
       .exchange = attention_exchange,
       .arithmetic = attention_arithmetic,
       .gradient = attention_gradient},
      {.kind = OpKind::Rotary,
       .name = "Rotary",
       .family = OpFamily::Attention,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_rotary,
       .loops = rotary_loops,
       .piece = rotary_piece,
       .arithmetic = rotary_arithmetic,
       .gradient = rotary_gradient},
  };
}

}  // namespace windlass::ops
