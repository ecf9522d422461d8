// The training step of one micro-batch: what strategies are made for.
#pragma once

#include "windlass/graph/batch.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"

namespace windlass {

struct MicroBatch {
  TrainingGraph training;
  BatchAxes batch;  // of its forward graph
};

// Of a network whose batch is cut into `parts` micro-batches, the first one of them: where `parts`
// does not divide the batch, they have two sizes (TrainingGraph::unequal). `batch` is find_batch()
// of the network. Throws Error{Input} as with_samples() does, if there are more parts than samples,
// or if an op makes no part of its results on a sample less.
MicroBatch cut_training(const Graph& network, const BatchAxes& batch, int64_t parts,
                        const TrainingOptions& options);
inline MicroBatch cut_training(const Graph& network, int64_t parts,
                               const TrainingOptions& options) {
  return cut_training(network, find_batch(network), parts, options);
}

// The samples of the batch that a micro-batch has, where sizes are unequal.
Range samples_of(const UnequalMicroBatches& batches, int32_t micro_batch);

// What a saved tensor takes in all micro-batches of a step, and their arithmetic.
Bytes saved_bytes(const TrainingGraph& training, size_t saved, int64_t micro_batches);
Flops flops_of(const TrainingGraph& training, int64_t micro_batches);

// The step of the smallest micro-batch: how its loops can be split, those of all can.
inline const TrainingGraph& smallest_of(const TrainingGraph& training) {
  return training.unequal ? training.unequal->smaller : training;
}

// The networks of the micro-batches, in turn: one if all are alike.
std::vector<const Graph*> graphs_of(const TrainingGraph& training);

// Tells the piece of a micro-batch of a forward op, or of its backward op, where it lies in the
// batch, so that cutting the batch changes no number: the random numbers that its elements draw are
// those they draw in the batch; and where sizes are unequal, what a mean over samples divides by is
// that of the batch / micro-batches, so that the mean of the losses is the loss of the batch, and
// of the gradients its gradient. `sample_axes` is BatchAxes::axis of the network; empty: axis 0 of
// everything. Labels that count in a CrossEntropy are data (reference/mean_counts.h). Throws
// Error{Unsupported} if samples of unequal micro-batches are cut in blocks.
void place_in_batch(const TrainingGraph& training, OpId forward, int32_t micro_batch,
                    int64_t micro_batches, const std::vector<int32_t>& sample_axes,
                    PieceFacts& facts);

}  // namespace windlass
