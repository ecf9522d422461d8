// Embedding and gather: rows of a table by index. Splitting the table is possible: each piece looks
// up the indices it holds and contributes zeros for the others (a reduced loop).

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

GradientRule gather_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  if (!is_float(s.input(0).dtype)) return rule;
  rule.inputs[0] = GradientSource::Computed;
  rule.saved = {saved_input(1)};
  rule.arithmetic = pointwise(elements(s.outputs[0]));
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
       .arithmetic = no_arithmetic,
       .gradient = gather_gradient},
  };
}

}  // namespace windlass::ops
