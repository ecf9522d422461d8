// Context parallelism by rule: which loop of each op runs over the positions of a sample.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/strategy/layout.h"

namespace windlass {

// Positions of the sequences that go into a network: the greatest common divisor of the second axes
// of its token ids [sample, position] and of its sequences of features [sample, position, feature];
// 1 if there are none.
int64_t positions_of(const Graph& graph);

// Into how many stripes sequences of so many positions are cut so that `parts` devices with a piece
// of each have about as much to do: later queries of causal attention see more keys. A device with
// contiguous queries has up to (1 - 1 / parts) more to do than the mean, with s stripes 1 / s of
// that. 1 where no attention is causal over whole sequences, or pieces would be short.
int32_t even_stripes(const Graph& graph, size_t forward_ops, int64_t parts);

// By forward op: the split of its loop over positions, or copies. Positions are followed from the
// inputs through loops that keep them apart; attention is split by queries, so that keys and values
// are gathered. Throws Error{Input} if there are no positions, or they cannot be cut so.
std::vector<Split> context_splits(const Graph& graph, size_t forward_ops, const BatchAxes& batch,
                                  int32_t parts, int32_t stripes);

}  // namespace windlass
