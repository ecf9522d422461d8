// Ops that only training has: sums of gradients and optimizer updates.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

std::vector<TensorType> infer_accumulate(const Signature& s) {
  require_shape(s, 1, s.shape(0), "second gradient");
  return {s.input(0)};
}

Arithmetic accumulate_arithmetic(const Signature& s) { return pointwise(elements(s.input(0))); }

// Operands: weight, gradient, master or none, states. Everything but the gradient is overwritten.
std::vector<TensorType> infer_update(const Signature& s) {
  for (size_t i = 1; i < s.inputs.size(); ++i)
    if (s.has_input(i)) require_shape(s, i, s.shape(0), "operand of the update");
  return {};
}

LoopNest update_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = axis_loops(s.shape(0));
  for (const TensorType& input : s.inputs)
    nest.inputs.push_back(input.present() ? aligned_map(input.shape.size()) : OperandMap{});
  return nest;
}

Arithmetic update_arithmetic(const Signature& s) {
  double operations = 0;
  switch (s.as<UpdateAttrs>().optimizer) {
    case OptimizerKind::Sgd: operations = 2; break;
    case OptimizerKind::Momentum: operations = 4; break;
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: operations = 14; break;
  }
  return pointwise(elements(s.input(0)) * operations);
}

std::vector<int32_t> update_writes(const Signature& s) {
  std::vector<int32_t> result;
  for (int32_t i = 0; i < static_cast<int32_t>(s.inputs.size()); ++i)
    if (i != 1 && s.has_input(static_cast<size_t>(i))) result.push_back(i);
  return result;
}

}  // namespace

std::vector<OpInfo> update_ops() {
  return {
      {.kind = OpKind::Accumulate,
       .name = "Accumulate",
       .family = OpFamily::Elementwise,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_accumulate,
       .loops = broadcast_loops,
       .arithmetic = accumulate_arithmetic},
      {.kind = OpKind::Update,
       .name = "Update",
       .family = OpFamily::Update,
       .min_inputs = 2,
       .max_inputs = 5,
       .memory_bound = true,
       .infer = infer_update,
       .loops = update_loops,
       .arithmetic = update_arithmetic,
       .writes = update_writes},
  };
}

}  // namespace windlass::ops
