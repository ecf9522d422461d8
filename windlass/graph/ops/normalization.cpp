// Batch, layer, RMS, group and local response normalisation. Splitting a normalised axis is
// possible: the pieces exchange their sums (Coupled), which keeps the mathematics of one device.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

// Values exchanged per slice when a normalised loop is split: count, mean and sum of squared
// deviations forward, the two sums of the gradient formula backward. RMS normalisation needs one of
// each.
constexpr Coupling kMomentCoupling = {.forward = 3, .backward = 2};
constexpr Coupling kRmsCoupling = {.forward = 1, .backward = 1};

Exchange moments(const Signature& s, const Shape& points) {
  return {statistics_type(s, points, kMomentCoupling.forward), MergeFn::Moments};
}

void require_channels(const Signature& s, size_t from, std::string_view kind) {
  if (s.shape(0).size() < 2)
    fail_input("input has shape {}, expected [batch, channel, ...]", format_shape(s.shape(0)));
  for (size_t i = from; i < s.inputs.size(); ++i)
    if (s.has_input(i)) require_shape(s, i, {s.shape(0)[1]}, kind);
}

std::vector<TensorType> infer_batch_norm(const Signature& s) {
  require_float(s, 0);
  require_channels(s, 1, "scale, bias and running statistics: one of them");
  return {s.input(0)};
}

std::vector<TensorType> batch_norm_auxiliaries(const Signature& s) {
  if (!s.as<BatchNormAttrs>().training) return {};
  const TensorType statistic = {statistic_dtype(s.input(0).dtype), {s.shape(0)[1]}};
  return {statistic, statistic};
}

LoopNest batch_norm_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  if (s.as<BatchNormAttrs>().training) {
    for (size_t i = 0; i < nest.loops.size(); ++i) {
      if (i == 1) continue;
      nest.loops[i].role = LoopRole::Coupled;
      nest.loops[i].coupling = kMomentCoupling;
    }
  }
  const size_t rank = s.shape(0).size();
  nest.inputs.push_back(aligned_map(rank));
  for (size_t i = 1; i < s.inputs.size(); ++i) nest.inputs.push_back({{.loop = 1}});
  nest.outputs.push_back(aligned_map(rank));
  nest.auxiliaries.assign(s.as<BatchNormAttrs>().training ? 2 : 0, OperandMap{{.loop = 1}});
  return nest;
}

void batch_norm_piece(const Signature& whole, OpPiece& piece) {
  piece.facts.mean_count = elements(whole.input(0)) / elements(whole.input(1));
}

// The backward sums are also the gradients of scale and bias.
Exchange batch_norm_exchange(const Signature& s, Pass pass, const std::vector<bool>&) {
  const Shape channels = {s.shape(0)[1]};
  if (pass == Pass::Backward) return {statistics_type(s, channels, kMomentCoupling.backward)};
  return moments(s, channels);
}

Arithmetic batch_norm_arithmetic(const Signature& s) {
  return pointwise(elements(s.input(0)) * (s.as<BatchNormAttrs>().training ? 7 : 2));
}

GradientRule batch_norm_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(s.inputs.size());
  for (size_t i = 0; i < 3; ++i) rule.inputs[i] = GradientSource::Computed;
  rule.arithmetic = pointwise(elements(s.input(0)) * 10);
  if (s.as<BatchNormAttrs>().training) {
    if (wanted[0] || wanted[1]) rule.saved = {saved_input(0), saved_aux(0), saved_aux(1)};
    if (wanted[0]) rule.saved.push_back(saved_input(1));
  } else {
    if (wanted[1]) rule.saved = {saved_input(0), saved_input(3)};
    if (wanted[0]) rule.saved.push_back(saved_input(1));
    if (wanted[0] || wanted[1]) rule.saved.push_back(saved_input(4));
  }
  return rule;
}

std::vector<int32_t> batch_norm_writes(const Signature& s) {
  return s.as<BatchNormAttrs>().training ? std::vector<int32_t>{3, 4} : std::vector<int32_t>{};
}

std::vector<TensorType> infer_layer_norm(const Signature& s) {
  require_float(s, 0);
  const Shape& x = s.shape(0);
  const size_t axis = normalize_axis(s.as<LayerNormAttrs>().axis, x.size());
  const Shape normalized(x.begin() + static_cast<int64_t>(axis), x.end());
  for (size_t i = 1; i < s.inputs.size(); ++i)
    if (s.has_input(i)) require_shape(s, i, normalized, i == 1 ? "scale" : "bias");
  return {s.input(0)};
}

Shape leading_shape(const Signature& s) {
  const Shape& x = s.shape(0);
  return Shape(x.begin(), x.begin() + s.as<LayerNormAttrs>().axis);
}

std::vector<TensorType> layer_norm_auxiliaries(const Signature& s) {
  const TensorType statistic = {statistic_dtype(s.input(0).dtype), leading_shape(s)};
  return {statistic, statistic};
}

std::vector<TensorType> rms_norm_auxiliaries(const Signature& s) {
  return {{statistic_dtype(s.input(0).dtype), leading_shape(s)}};
}

LoopNest trailing_norm_loops(const Signature& s, Coupling coupling, size_t statistics) {
  const Shape& x = s.shape(0);
  const auto axis = static_cast<size_t>(s.as<LayerNormAttrs>().axis);
  LoopNest nest;
  nest.loops = axis_loops(x);
  for (size_t i = axis; i < x.size(); ++i) {
    nest.loops[i].role = LoopRole::Coupled;
    nest.loops[i].coupling = coupling;
  }
  nest.inputs.push_back(aligned_map(x.size()));
  for (size_t i = 1; i < s.inputs.size(); ++i)
    nest.inputs.push_back(s.has_input(i) ? aligned_map(x.size() - axis, static_cast<int32_t>(axis))
                                         : OperandMap{});
  nest.outputs.push_back(aligned_map(x.size()));
  nest.auxiliaries.assign(statistics, aligned_map(axis));
  return nest;
}

LoopNest layer_norm_loops(const Signature& s) { return trailing_norm_loops(s, kMomentCoupling, 2); }
LoopNest rms_norm_loops(const Signature& s) { return trailing_norm_loops(s, kRmsCoupling, 1); }

void trailing_norm_piece(const Signature& whole, OpPiece& piece) {
  const Shape& x = whole.shape(0);
  piece.facts.mean_count = static_cast<double>(
      element_count(Shape(x.begin() + whole.as<LayerNormAttrs>().axis, x.end())));
}

// Scale and bias have the loops that are cut: only the gradient of x needs the sums.
Exchange layer_norm_exchange(const Signature& s, Pass pass, const std::vector<bool>& wanted) {
  if (pass != Pass::Backward) return moments(s, leading_shape(s));
  if (!wanted[0]) return {};
  return {statistics_type(s, leading_shape(s), kMomentCoupling.backward)};
}

Exchange rms_norm_exchange(const Signature& s, Pass pass, const std::vector<bool>& wanted) {
  if (pass == Pass::Backward && !wanted[0]) return {};
  return {statistics_type(s, leading_shape(s), 1)};
}

Arithmetic layer_norm_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 8); }
Arithmetic rms_norm_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 5); }

// x and the statistics for dx and dscale, the scale for dx; dbias is a plain sum.
GradientRule statistic_gradient(const Signature& s, const std::vector<bool>& wanted, int statistics,
                                double operations) {
  GradientRule rule = no_gradient(s.inputs.size());
  for (size_t i = 0; i < s.inputs.size(); ++i)
    if (s.has_input(i)) rule.inputs[i] = GradientSource::Computed;
  const bool scale_wanted = wanted.size() > 1 && wanted[1];
  if (wanted[0] || scale_wanted) {
    rule.saved.push_back(saved_input(0));
    for (int i = 0; i < statistics; ++i) rule.saved.push_back(saved_aux(i));
  }
  if (wanted[0] && s.has_input(1)) rule.saved.push_back(saved_input(1));
  rule.arithmetic = pointwise(elements(s.input(0)) * operations);
  return rule;
}

GradientRule layer_norm_gradient(const Signature& s, const std::vector<bool>& wanted) {
  return statistic_gradient(s, wanted, 2, 14);
}
GradientRule rms_norm_gradient(const Signature& s, const std::vector<bool>& wanted) {
  return statistic_gradient(s, wanted, 1, 9);
}

std::vector<TensorType> infer_group_norm(const Signature& s) {
  require_float(s, 0);
  require_channels(s, 1, "scale or bias");
  const int64_t groups = s.as<GroupNormAttrs>().groups;
  if (groups < 1 || s.shape(0)[1] % groups != 0)
    fail_input("{} channels do not divide into {} groups", s.shape(0)[1], groups);
  return {s.input(0)};
}

std::vector<TensorType> group_norm_auxiliaries(const Signature& s) {
  const TensorType statistic = {statistic_dtype(s.input(0).dtype),
                                {s.shape(0)[0], s.as<GroupNormAttrs>().groups}};
  return {statistic, statistic};
}

// The backward sums are those of each channel, since every piece is to know the whole gradients of
// scale and bias.
LoopNest group_norm_loops(const Signature& s) {
  const Shape& x = s.shape(0);
  const int64_t groups = s.as<GroupNormAttrs>().groups;
  const int64_t width = x[1] / groups;
  LoopNest nest;
  nest.loops = axis_loops(x);
  nest.loops[1] = {.name = "group", .size = groups};
  for (size_t i = 2; i < x.size(); ++i) {
    nest.loops[i].role = LoopRole::Coupled;
    nest.loops[i].coupling = {kMomentCoupling.forward, kMomentCoupling.backward * width};
  }
  const AxisMap channel = {.loop = 1, .stride = width, .window = width};
  OperandMap data = aligned_map(x.size());
  data[1] = channel;
  nest.inputs.push_back(data);
  for (size_t i = 1; i < s.inputs.size(); ++i)
    nest.inputs.push_back(s.has_input(i) ? OperandMap{channel} : OperandMap{});
  nest.outputs.push_back(data);
  nest.auxiliaries.assign(2, aligned_map(2));
  return nest;
}

void group_norm_piece(const Signature& whole, OpPiece& piece) {
  const Shape& x = whole.shape(0);
  auto& groups = std::get<GroupNormAttrs>(piece.attrs).groups;
  piece.facts.mean_count =
      static_cast<double>(element_count(Shape(x.begin() + 1, x.end())) / groups);
  groups = groups * piece.input_regions[0][1].count() / x[1];
}

Exchange group_norm_exchange(const Signature& s, Pass pass, const std::vector<bool>&) {
  const Shape& x = s.shape(0);
  const int64_t groups = s.as<GroupNormAttrs>().groups;
  if (pass != Pass::Backward) return moments(s, {x[0], groups});
  return {statistics_type(s, {x[0], groups}, kMomentCoupling.backward * x[1] / groups)};
}

GradientRule group_norm_gradient(const Signature& s, const std::vector<bool>& wanted) {
  return statistic_gradient(s, wanted, 2, 14);
}

std::vector<TensorType> infer_lrn(const Signature& s) {
  require_float(s, 0);
  require_channels(s, 1, "channel");
  if (s.as<LrnAttrs>().size < 1)
    fail_input("size is {}, expected at least 1", s.as<LrnAttrs>().size);
  return {s.input(0)};
}

LoopNest lrn_loops(const Signature& s) {
  const int64_t size = s.as<LrnAttrs>().size;
  const size_t rank = s.shape(0).size();
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  OperandMap input = aligned_map(rank);
  input[1].offset = -((size - 1) / 2);
  input[1].window = size;
  nest.inputs = {input};
  nest.outputs = {aligned_map(rank)};
  return nest;
}

void lrn_piece(const Signature&, OpPiece& piece) {
  const AxisPart &in = piece.input_regions[0][1], &out = piece.output_regions[0][1];
  if (out.blocks == 1)
    piece.facts.channels = {out.range.begin - in.range.begin, out.range.end - in.range.begin};
}

Arithmetic lrn_arithmetic(const Signature& s) {
  return pointwise(elements(s.input(0)) * (static_cast<double>(s.as<LrnAttrs>().size) + 4));
}

// The backward pass has its own halo: dx at a channel reads x, y and dy of the window around it.
GradientRule lrn_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule;
  rule.inputs = {GradientSource::Computed};
  rule.saved = {saved_input(0), saved_output(0)};
  rule.arithmetic = pointwise(lrn_arithmetic(s).pointwise * 3);
  return rule;
}

}  // namespace

std::vector<OpInfo> normalization_ops() {
  return {
      {.kind = OpKind::BatchNorm,
       .name = "BatchNorm",
       .family = OpFamily::Normalization,
       .min_inputs = 5,
       .max_inputs = 5,
       .memory_bound = true,
       .infer = infer_batch_norm,
       .auxiliaries = batch_norm_auxiliaries,
       .loops = batch_norm_loops,
       .piece = batch_norm_piece,
       .exchange = batch_norm_exchange,
       .arithmetic = batch_norm_arithmetic,
       .gradient = batch_norm_gradient,
       .writes = batch_norm_writes},
      {.kind = OpKind::LayerNorm,
       .name = "LayerNorm",
       .family = OpFamily::Normalization,
       .min_inputs = 1,
       .max_inputs = 3,
       .memory_bound = true,
       .infer = infer_layer_norm,
       .auxiliaries = layer_norm_auxiliaries,
       .loops = layer_norm_loops,
       .piece = trailing_norm_piece,
       .exchange = layer_norm_exchange,
       .arithmetic = layer_norm_arithmetic,
       .gradient = layer_norm_gradient},
      {.kind = OpKind::RmsNorm,
       .name = "RmsNorm",
       .family = OpFamily::Normalization,
       .min_inputs = 1,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_layer_norm,
       .auxiliaries = rms_norm_auxiliaries,
       .loops = rms_norm_loops,
       .piece = trailing_norm_piece,
       .exchange = rms_norm_exchange,
       .arithmetic = rms_norm_arithmetic,
       .gradient = rms_norm_gradient},
      {.kind = OpKind::GroupNorm,
       .name = "GroupNorm",
       .family = OpFamily::Normalization,
       .min_inputs = 1,
       .max_inputs = 3,
       .memory_bound = true,
       .infer = infer_group_norm,
       .auxiliaries = group_norm_auxiliaries,
       .loops = group_norm_loops,
       .piece = group_norm_piece,
       .exchange = group_norm_exchange,
       .arithmetic = layer_norm_arithmetic,
       .gradient = group_norm_gradient},
      {.kind = OpKind::LocalResponseNorm,
       .name = "LocalResponseNorm",
       .family = OpFamily::Normalization,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_lrn,
       .loops = lrn_loops,
       .piece = lrn_piece,
       .arithmetic = lrn_arithmetic,
       .gradient = lrn_gradient},
  };
}

}  // namespace windlass::ops
