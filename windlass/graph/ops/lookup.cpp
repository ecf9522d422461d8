// Embedding and gather: rows of a table by index. Splitting the table is possible: each piece looks
// up the indices it holds and contributes zeros for the others (a reduced loop). Elements along an
// axis by an index each: all but that axis can be split.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

std::vector<TensorType> infer_embedding(const Signature& s) {
  require_integer(s, 0);
  require_rank(s, 1, 2);
  Shape shape = s.shape(0);
  shape.push_back(s.shape(1)[1]);
  return {{s.input(1).dtype, shape}};
}

LoopNest embedding_loops(const Signature& s) {
  const size_t rank = s.shape(0).size();
  const auto width = static_cast<int32_t>(rank);
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  nest.loops.push_back({.name = "width", .size = s.shape(1)[1]});
  nest.loops.push_back({.name = "row", .size = s.shape(1)[0], .role = LoopRole::Reduced});
  nest.inputs = {aligned_map(rank), {{.loop = width + 1}, {.loop = width}}};
  nest.outputs = {aligned_map(rank + 1)};
  return nest;
}

void embedding_piece(const Signature&, OpPiece& piece) {
  piece.facts.rows = piece.input_regions[1][0];
}

GradientRule embedding_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  rule.inputs[1] = GradientSource::Computed;
  rule.saved = {saved_input(0)};
  rule.arithmetic = pointwise(elements(s.outputs[0]));
  return rule;
}

std::vector<TensorType> infer_gather(const Signature& s) {
  require_integer(s, 1);
  const Shape& data = s.shape(0);
  const size_t axis = normalize_axis(s.as<AxisAttrs>().axis, data.size());
  Shape shape(data.begin(), data.begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), s.shape(1).begin(), s.shape(1).end());
  shape.insert(shape.end(), data.begin() + static_cast<int64_t>(axis) + 1, data.end());
  return {{s.input(0).dtype, shape}};
}

LoopNest gather_loops(const Signature& s) {
  const Shape& data = s.shape(0);
  const auto axis = static_cast<size_t>(s.as<AxisAttrs>().axis);
  const size_t indices = s.shape(1).size();
  LoopNest nest;
  nest.loops = axis_loops(s.outputs[0].shape);
  const auto row = static_cast<int32_t>(nest.loops.size());
  const bool summable = is_float(s.input(0).dtype);
  nest.loops.push_back(
      {.name = "row", .size = data[axis], .role = summable ? LoopRole::Reduced : LoopRole::Whole});
  OperandMap table(data.size());
  for (size_t i = 0; i < data.size(); ++i)
    table[i].loop = i == axis ? row : static_cast<int32_t>(i < axis ? i : i + indices - 1);
  nest.inputs = {table, aligned_map(indices, static_cast<int32_t>(axis))};
  nest.outputs = {aligned_map(s.outputs[0].shape.size())};
  return nest;
}

void gather_piece(const Signature& whole, OpPiece& piece) {
  piece.facts.rows = piece.input_regions[0][static_cast<size_t>(whole.as<AxisAttrs>().axis)];
}

GradientRule gather_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  if (!is_float(s.input(0).dtype)) return rule;
  rule.inputs[0] = GradientSource::Computed;
  rule.saved = {saved_input(1)};
  rule.arithmetic = pointwise(elements(s.outputs[0]));
  return rule;
}

// All axes but the indexed one are those of the indices.
void require_aligned(const Signature& s, size_t axis) {
  require_integer(s, 1);
  const Shape &data = s.shape(0), &where = s.shape(1);
  bool fits = where.size() == data.size();
  for (size_t i = 0; fits && i < data.size(); ++i) fits = i == axis || where[i] == data[i];
  if (!fits)
    fail_input("indices {} do not fit data {} along axis {}", format_shape(where),
               format_shape(data), axis);
}

std::vector<TensorType> infer_gather_elements(const Signature& s) {
  require_aligned(s, normalize_axis(s.as<AxisAttrs>().axis, s.shape(0).size()));
  return {{s.input(0).dtype, s.shape(1)}};
}

std::vector<TensorType> infer_scatter_elements(const Signature& s) {
  require_aligned(s, normalize_axis(s.as<ScatterAttrs>().axis, s.shape(0).size()));
  require_shape(s, 2, s.shape(1), "updates");
  if (s.input(2).dtype != s.input(0).dtype)
    fail_input("updates are {}, data {}", format_type(s.input(2)), format_type(s.input(0)));
  return {s.input(0)};
}

LoopNest element_loops(const Signature& s, int64_t axis) {
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  nest.loops[static_cast<size_t>(axis)].role = LoopRole::Whole;
  OperandMap map = aligned_map(s.shape(0).size());
  map[static_cast<size_t>(axis)] = {};
  nest.inputs.assign(s.inputs.size(), map);
  nest.outputs = {map};
  return nest;
}

LoopNest gather_elements_loops(const Signature& s) {
  return element_loops(s, s.as<AxisAttrs>().axis);
}

LoopNest scatter_elements_loops(const Signature& s) {
  return element_loops(s, s.as<ScatterAttrs>().axis);
}

GradientRule scatter_elements_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(3);
  if (!is_float(s.input(0).dtype)) return rule;
  const bool add = s.as<ScatterAttrs>().add;
  rule.inputs[0] = add ? GradientSource::PassThrough : GradientSource::Computed;
  rule.inputs[2] = GradientSource::Computed;
  rule.saved = {saved_input(1)};
  rule.arithmetic = pointwise(elements(s.input(1)));
  return rule;
}

}  // namespace

std::vector<OpInfo> lookup_ops() {
  return {
      {.kind = OpKind::Embedding,
       .name = "Embedding",
       .family = OpFamily::Lookup,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_embedding,
       .loops = embedding_loops,
       .piece = embedding_piece,
       .arithmetic = no_arithmetic,
       .gradient = embedding_gradient},
      {.kind = OpKind::Gather,
       .name = "Gather",
       .family = OpFamily::Lookup,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_gather,
       .loops = gather_loops,
       .piece = gather_piece,
       .arithmetic = no_arithmetic,
       .gradient = gather_gradient},
      {.kind = OpKind::GatherElements,
       .name = "GatherElements",
       .family = OpFamily::Lookup,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_gather_elements,
       .loops = gather_elements_loops,
       .arithmetic = no_arithmetic,
       .gradient = gather_gradient},
      {.kind = OpKind::ScatterElements,
       .name = "ScatterElements",
       .family = OpFamily::Lookup,
       .min_inputs = 3,
       .max_inputs = 3,
       .memory_bound = true,
       .infer = infer_scatter_elements,
       .loops = scatter_elements_loops,
       .arithmetic = no_arithmetic,
       .gradient = scatter_elements_gradient},
  };
}

}  // namespace windlass::ops
