// The training step of one micro-batch: what strategies are made for.
#pragma once

#include "windlass/graph/batch.h"
#include "windlass/graph/differentiate.h"

namespace windlass {

struct MicroBatch {
  TrainingGraph training;
  BatchAxes batch;  // of its forward graph
};

// Of a network whose batch is cut into `parts` equal micro-batches; `batch` is find_batch() of the
// network. Throws Error{Input} as cut_batch() does.
MicroBatch cut_training(const Graph& network, const BatchAxes& batch, int64_t parts,
                        const TrainingOptions& options);
inline MicroBatch cut_training(const Graph& network, int64_t parts,
                               const TrainingOptions& options) {
  return cut_training(network, find_batch(network), parts, options);
}

}  // namespace windlass
