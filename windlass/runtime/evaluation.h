// Evaluation: the forward pass alone, as a trained model is used.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/runtime/executor.h"

namespace windlass {

// The loss of one micro-batch. Dropout is left out, batch norms use their running statistics.
// Tensors live in the executor's device, op by op, as short as they can; weights that rest on the
// host are copied for the ops that read them. Throws Error{OutOfMemory} if the limit is too small.
// `load` writes an input or label; `mean_counts` is by op, or empty (load_counts.h). No step may
// run at the same time.
double evaluate_loss(const TrainingGraph& training, Executor& executor,
                     const std::function<void(TensorId, std::span<std::byte>)>& load,
                     const std::vector<double>& mean_counts);

}  // namespace windlass
