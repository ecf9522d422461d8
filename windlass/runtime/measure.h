// Runs single kernels on operands made up for them, to see what they take on this host.
#pragma once

#include <cstdint>

#include "windlass/graph/differentiate.h"
#include "windlass/sim/simulate.h"

namespace windlass {

struct KernelPrice {
  Nanoseconds time = 0;
  int64_t workspace = 0;  // most that it held beside operands and results
};

// A forward or backward op with so many threads. Bit i of `adds`: result i is added to a sum.
KernelPrice measure_op(const Graph& graph, const Op& op, uint64_t adds, int threads);

// What the time of an update depends on beside its size.
struct UpdateVariant {
  OptimizerKind optimizer = OptimizerKind::Adam;
  DType weight = DType::F32, gradient = DType::F32;
  bool master = false;
  auto operator<=>(const UpdateVariant&) const = default;
};

// Of one weight with so many elements. Its tensors are not in the caches, as when a step updates
// one weight after the other.
Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads);

}  // namespace windlass
