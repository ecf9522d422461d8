// The batch: which axis of each tensor, and which loop of each op, runs over the samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

struct BatchAxes {
  int64_t samples = 0;        // of the whole batch
  std::vector<int32_t> axis;  // by tensor: its axis whose outermost part is the sample; -1: none
  std::vector<int32_t> loop;  // by forward op: likewise; -1: the op does not see samples apart
  // Ops that make a number of data alone, over all samples, by which the loss divides sums over the
  // samples: what labels weigh together, how much a mask leaves. In a micro-batch their result has
  // to be that of the batch / micro-batches (graph/reference/mean_counts.h).
  std::vector<OpId> divisors = {};
  // Why the batch cannot be cut into micro-batches that are computed one after the other; empty if
  // it can. (Pieces that are computed side by side may still exchange what they need.)
  std::string obstacle;
};

// Follows the samples from axis 0 of the data inputs through a forward graph. An op that mixes
// samples (a norm over the batch) or loses track of them is an obstacle.
BatchAxes find_batch(const Graph& graph);

// The same network on so many of the samples, whose loss is the mean over those. Throws
// Error{Input} if there is an obstacle, or an axis cannot be cut so.
Graph with_samples(const Graph& graph, const BatchAxes& batch, int64_t samples);
// On samples / parts samples. Throws Error{Input} also if `parts` does not divide the batch.
Graph cut_batch(const Graph& graph, const BatchAxes& batch, int64_t parts);

}  // namespace windlass
