// How many labels of a step's micro-batches count (graph/reference/mean_counts.h), read with the
// data of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// By op of the network of one micro-batch; empty if there is one micro-batch only, whose labels the
// op counts itself. `load` writes an input or label of a micro-batch.
std::vector<double> load_mean_counts(
    const Graph& graph, int64_t micro_batches,
    const std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>& load);

}  // namespace windlass
