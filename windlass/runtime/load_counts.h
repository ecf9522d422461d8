// What the loss of a step's micro-batches divides by (graph/reference/mean_counts.h), read with the
// data of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "windlass/graph/batch.h"

namespace windlass {

// By op of the network of one micro-batch; `graphs` are those of the micro-batches in turn
// (graphs_of). `batch` is that of the network before it was cut. `load` writes an input or label of
// a micro-batch, or a buffer that no op writes.
std::vector<double> load_mean_counts(
    const std::vector<const Graph*>& graphs, const BatchAxes& batch, int64_t micro_batches,
    const std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>& load);

}  // namespace windlass
