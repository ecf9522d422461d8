#include "windlass/strategy/context_parallel.h"

#include <numeric>

#include "windlass/base/error.h"
#include "windlass/strategy/follow_axis.h"

namespace windlass {
namespace {

// Kernels visit queries in blocks; shorter pieces would leave them half empty.
constexpr int64_t kShortestPiece = 128;
constexpr int32_t kMostStripes = 32;

// Token ids, or features of positions. Images and tables have no positions.
bool is_sequence(const Tensor& tensor) {
  if (tensor.role != TensorRole::Input) return false;
  const size_t rank = tensor.type.shape.size();
  return rank == (is_integer(tensor.type.dtype) ? 2 : 3);
}

}  // namespace

int64_t positions_of(const Graph& graph) {
  int64_t positions = 0;
  for (const Tensor& tensor : graph.tensors)
    if (is_sequence(tensor)) positions = std::gcd(positions, tensor.type.shape[1]);
  return std::max<int64_t>(1, positions);
}

int32_t even_stripes(const Graph& graph, size_t forward_ops, int64_t parts) {
  const int64_t positions = positions_of(graph);
  bool uneven = false;
  for (size_t i = 0; i < forward_ops; ++i)
    if (const auto* attrs = std::get_if<AttentionAttrs>(&graph.ops[i].attrs))
      uneven = uneven || (attrs->causal && attrs->window == 0);
  int32_t stripes = 1;
  while (uneven && stripes < kMostStripes && positions % (2 * stripes * parts) == 0 &&
         positions / (2 * stripes * parts) >= kShortestPiece)
    stripes *= 2;
  return stripes;
}

std::vector<Split> context_splits(const Graph& graph, size_t forward_ops, const BatchAxes& batch,
                                  int32_t parts, int32_t stripes) {
  const int64_t positions = positions_of(graph);
  if (positions == 1) fail_input("cp={}: the network has no sequences to split", parts);
  if (positions % (int64_t{parts} * stripes) != 0)
    fail_input("cp={}: {} positions cannot be cut into {} stripes of {} equal parts", parts,
               positions, stripes, parts);
  AxisFollower follower(graph);
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (is_sequence(graph.tensors[t])) follower.mark(TensorId(t), 1);
  std::vector<Split> result;
  for (size_t i = 0; i < forward_ops; ++i) {
    const int32_t loop = follower.visit(graph.ops[i], int64_t{parts} * stripes, batch.loop[i]);
    result.push_back(loop < 0 ? Split{-1, parts} : Split{loop, parts, stripes});
  }
  return result;
}

}  // namespace windlass
