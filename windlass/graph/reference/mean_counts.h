// What the means of a loss divide by where a batch is cut into micro-batches.
//
// The loss of a batch is the mean over all its labels that count: their number, or what they weigh
// together, is data, and micro-batches may have unlike numbers of them, so that the mean of their
// means is another number. Where every micro-batch divides its sum by the same count /
// micro-batches, the mean over micro-batches is that of the batch, and one without labels that
// count adds nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass {

// An input or label of a micro-batch, or a buffer that no op writes.
using MicroBatchData = std::function<Array(TensorId, int32_t micro_batch)>;

// By op of the network of one micro-batch: of a CrossEntropy its PieceFacts::mean_count,
// of BatchAxes::divisors the result that it has to have. Negative for all other ops, and where
// labels do not follow from data alone and micro-batches are alike: find_batch lets these be cut
// only if all their labels count. `batch` is that of the network before it was cut; it may be empty
// if there are no divisors. `graphs` are the networks of the micro-batches in turn, which differ in
// sizes only: one if all are alike (graphs_of). Throws Error{Input} if a divisor is negative.
std::vector<double> mean_counts(const std::vector<const Graph*>& graphs, const BatchAxes& batch,
                                int32_t micro_batches, const MicroBatchData& data);

}  // namespace windlass
