// What the means of cross-entropies divide by where a batch is cut into micro-batches.
//
// The loss of a batch is the mean over all its labels that count. How many there are is data, and
// micro-batches may have unlike numbers of them, so that the mean of their means is another number.
// Where every micro-batch divides its sum by the same count / micro-batches, the mean over
// micro-batches is that of the batch, and one without labels that count adds nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/graph/reference/interpret.h"

namespace windlass {

// An input or label of a micro-batch.
using MicroBatchData = std::function<Array(TensorId, int32_t micro_batch)>;

// By op of `graph`, the network of one micro-batch: PieceFacts::mean_count of each CrossEntropy.
// Negative for all other ops, and for those whose labels do not follow from data alone: find_batch
// lets these be cut only if all their labels count.
std::vector<double> mean_counts(const Graph& graph, int32_t micro_batches,
                                const MicroBatchData& data);

}  // namespace windlass
