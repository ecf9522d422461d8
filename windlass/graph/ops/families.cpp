#include "windlass/graph/ops/families.h"

namespace windlass::ops {

void require_float(const Signature& s, size_t input) {
  if (!is_float(s.inputs[input].dtype))
    fail_input("input {} is {}, expected a floating-point tensor", input,
               format_type(s.inputs[input]));
}

void require_integer(const Signature& s, size_t input) {
  if (!is_integer(s.inputs[input].dtype))
    fail_input("input {} is {}, expected integers", input, format_type(s.inputs[input]));
}

void require_rank(const Signature& s, size_t input, size_t rank) {
  if (s.inputs[input].shape.size() != rank)
    fail_input("input {} has shape {}, expected {} dimensions", input,
               format_shape(s.inputs[input].shape), rank);
}

void require_shape(const Signature& s, size_t input, const Shape& expected, std::string_view what) {
  if (s.inputs[input].shape != expected)
    fail_input("{} has shape {}, expected {}", what, format_shape(s.inputs[input].shape),
               format_shape(expected));
}

TensorType statistics_type(const Signature& s, Shape points, int64_t width) {
  points.push_back(width);
  return {statistic_dtype(s.input(0).dtype), std::move(points)};
}

GradientRule no_gradient(size_t count) {
  GradientRule rule;
  rule.inputs.assign(count, GradientSource::None);
  return rule;
}

std::vector<LoopDim> axis_loops(const Shape& shape) {
  std::vector<LoopDim> loops;
  for (size_t i = 0; i < shape.size(); ++i)
    loops.push_back({.name = "d" + std::to_string(i), .size = shape[i]});
  return loops;
}

OperandMap aligned_map(size_t rank, int32_t first) {
  OperandMap map(rank);
  for (size_t i = 0; i < rank; ++i) map[i].loop = first + static_cast<int32_t>(i);
  return map;
}

OperandMap broadcast_map(const Shape& shape, const Shape& full, int32_t first) {
  OperandMap map(shape.size());
  const size_t skipped = full.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == full[skipped + i]) map[i].loop = first + static_cast<int32_t>(skipped + i);
  return map;
}

LoopNest broadcast_loops(const Signature& s) {
  LoopNest nest;
  const Shape& full = s.outputs[0].shape;
  nest.loops = axis_loops(full);
  for (const TensorType& input : s.inputs)
    nest.inputs.push_back(input.present() ? broadcast_map(input.shape, full) : OperandMap{});
  nest.outputs.assign(s.outputs.size(), aligned_map(full.size()));
  for (const TensorType& extra : s.auxiliaries)
    nest.auxiliaries.push_back(broadcast_map(extra.shape, full));
  return nest;
}

}  // namespace windlass::ops
