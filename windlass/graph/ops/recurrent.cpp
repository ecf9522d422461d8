// One layer of LSTM or GRU over a sequence.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

int64_t gate_count(const Signature& s) { return s.kind == OpKind::Lstm ? 4 : 3; }
int64_t directions(const Signature& s) { return s.as<RecurrentAttrs>().bidirectional ? 2 : 1; }

std::vector<TensorType> infer_recurrent(const Signature& s) {
  const auto& a = s.as<RecurrentAttrs>();
  require_float(s, 0);
  require_rank(s, 0, 3);
  if (a.hidden < 1) fail_input("hidden size is {}, expected at least 1", a.hidden);
  const Shape& x = s.shape(0);
  const int64_t d = directions(s);
  const int64_t rows = checked_mul(gate_count(s), a.hidden);
  require_shape(s, 1, {d, rows, x[2]}, "input weight");
  require_shape(s, 2, {d, rows, a.hidden}, "recurrent weight");
  if (s.has_input(3)) require_shape(s, 3, {d, checked_mul(2, rows)}, "bias");
  for (size_t i = 4; i < s.inputs.size(); ++i)
    if (s.has_input(i)) require_shape(s, i, {d, x[1], a.hidden}, "initial state");
  const DType dtype = s.input(0).dtype;
  const TensorType last = {dtype, {d, x[1], a.hidden}};
  std::vector<TensorType> outputs = {{dtype, {x[0], d, x[1], a.hidden}}, last};
  if (s.kind == OpKind::Lstm) outputs.push_back(last);
  return outputs;
}

// LSTM: the four gates and the cell of each step. GRU: the three gates and the recurrent part of
// the candidate.
std::vector<TensorType> recurrent_auxiliaries(const Signature& s) {
  const Shape& x = s.shape(0);
  const int64_t hidden = s.as<RecurrentAttrs>().hidden;
  const DType dtype = s.input(0).dtype;
  std::vector<TensorType> result = {{dtype, {x[0], directions(s), x[1], checked_mul(4, hidden)}}};
  if (s.kind == OpKind::Lstm) result.push_back({dtype, {x[0], directions(s), x[1], hidden}});
  return result;
}

// Steps follow each other. Directions and samples are independent.
LoopNest recurrent_loops(const Signature& s) {
  const Shape& x = s.shape(0);
  LoopNest nest;
  nest.loops = {{.name = "step", .size = x[0], .role = LoopRole::Whole},
                {.name = "direction", .size = directions(s)},
                {.name = "batch", .size = x[1]},
                {.name = "hidden", .size = s.as<RecurrentAttrs>().hidden, .role = LoopRole::Whole},
                {.name = "in", .size = x[2], .role = LoopRole::Whole}};
  const OperandMap state = {{.loop = 1}, {.loop = 2}, {.loop = 3}};
  const OperandMap sequence = {{.loop = 0}, {.loop = 1}, {.loop = 2}, {.loop = 3}};
  nest.inputs = {{{.loop = 0}, {.loop = 2}, {.loop = 4}},
                 {{.loop = 1}, {}, {.loop = 4}},
                 {{.loop = 1}, {}, {}}};
  if (s.inputs.size() > 3)
    nest.inputs.push_back(s.has_input(3) ? OperandMap{{.loop = 1}, {}} : OperandMap{});
  for (size_t i = 4; i < s.inputs.size(); ++i)
    nest.inputs.push_back(s.has_input(i) ? state : OperandMap{});
  nest.outputs = {sequence, state};
  if (s.kind == OpKind::Lstm) nest.outputs.push_back(state);
  const OperandMap gates = {{.loop = 0}, {.loop = 1}, {.loop = 2}, {}};
  nest.auxiliaries = {gates};
  if (s.kind == OpKind::Lstm) nest.auxiliaries.push_back(sequence);
  return nest;
}

void recurrent_piece(const Signature&, OpPiece& piece) {
  auto& a = std::get<RecurrentAttrs>(piece.attrs);
  const AxisPart& direction = piece.output_regions[0][1];
  if (direction.whole()) return;
  a.bidirectional = false;
  a.reverse = direction.range.begin == 1;
}

Arithmetic recurrent_arithmetic(const Signature& s) {
  const Shape& x = s.shape(0);
  const auto hidden = static_cast<double>(s.as<RecurrentAttrs>().hidden);
  const double cells = static_cast<double>(x[0]) * static_cast<double>(x[1]) *
                       static_cast<double>(directions(s)) * hidden;
  const auto gates = static_cast<double>(gate_count(s));
  return {cells * gates * (static_cast<double>(x[2]) + hidden), cells * gates * 6};
}

GradientRule recurrent_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(s.inputs.size());
  for (size_t i = 0; i < s.inputs.size(); ++i)
    if (s.has_input(i)) rule.inputs[i] = GradientSource::Computed;
  for (int32_t i = 0; i < static_cast<int32_t>(s.inputs.size()); ++i) {
    // The input is needed for the input weight's gradient, that weight for the input's.
    if (i == 0 && !wanted[1]) continue;
    if (i == 1 && !wanted[0]) continue;
    if (i == 3 || !s.has_input(static_cast<size_t>(i))) continue;
    rule.saved.push_back(saved_input(i));
  }
  rule.saved.push_back(saved_output(0));
  rule.saved.push_back(saved_aux(0));
  if (s.kind == OpKind::Lstm) rule.saved.push_back(saved_aux(1));
  const Arithmetic forward = recurrent_arithmetic(s);
  const auto in = static_cast<double>(s.shape(0)[2]);
  const auto hidden = static_cast<double>(s.as<RecurrentAttrs>().hidden);
  // Through time always; the other three products as wanted.
  rule.arithmetic.multiply_adds =
      forward.multiply_adds / (in + hidden) *
      (hidden + (wanted[0] ? in : 0) + (wanted[1] ? in : 0) + (wanted[2] ? hidden : 0));
  rule.arithmetic.pointwise = forward.pointwise * 2;
  return rule;
}

OpInfo recurrent(OpKind kind, std::string_view name, size_t max_inputs) {
  OpInfo info{};
  info.kind = kind;
  info.name = name;
  info.family = OpFamily::Recurrent;
  info.min_inputs = 3;
  info.max_inputs = max_inputs;
  info.infer = infer_recurrent;
  info.auxiliaries = recurrent_auxiliaries;
  info.loops = recurrent_loops;
  info.piece = recurrent_piece;
  info.arithmetic = recurrent_arithmetic;
  info.gradient = recurrent_gradient;
  return info;
}

}  // namespace

std::vector<OpInfo> recurrent_ops() {
  return {recurrent(OpKind::Lstm, "Lstm", 6), recurrent(OpKind::Gru, "Gru", 5)};
}

}  // namespace windlass::ops
