// Tensor parallelism by rule: which loop of each op is split over the devices that share a replica.
#pragma once

#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/strategy/layout.h"

namespace windlass {

// How one op takes part: a split loop, or copies.
struct TensorSplit {
  Split split;
  bool sequence = false;  // split along the tokens, outside of the tensor-parallel regions
};

// Megatron's rule for any graph: a product whose result reaches another product through ops that
// work on parts is split by outputs, the other one by inputs; embeddings and the loss are split by
// vocabulary; attention by heads. With `sequence`, what remains is split along the tokens.
std::vector<TensorSplit> megatron_splits(const Graph& graph, size_t forward_ops,
                                         const BatchAxes& batch, int32_t parts, bool sequence);

// Krizhevsky 2014: dense layers are split by outputs, everything else is not.
std::vector<TensorSplit> dense_splits(const Graph& graph, size_t forward_ops, int32_t parts);

}  // namespace windlass
