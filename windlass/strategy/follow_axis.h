// Following an axis (positions, experts) through the ops of a network.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/op_info.h"

namespace windlass {

// Keeps which axis of each tensor is the one that is followed. Ops are visited in order.
class AxisFollower {
 public:
  explicit AxisFollower(const Graph& graph) : graph_(graph), axis_(graph.tensors.size(), -1) {}

  void mark(TensorId tensor, int32_t axis) { axis_[tensor.index()] = axis; }

  // The loop that the first marked input follows whose indices it keeps apart, if it can be cut
  // into so many equal parts and is not `other`; the results that have it are marked. -1: none.
  int32_t visit(const Op& op, int64_t parts, int32_t other = -1);

 private:
  const Graph& graph_;
  std::vector<int32_t> axis_;  // by tensor; -1: none
};

}  // namespace windlass
