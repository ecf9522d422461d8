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
// Tensors live op by op, as short as they can: in the executor's device if there is one, inside its
// limit (Error{OutOfMemory} if that is too small), else in the host's free memory. Weights that
// rest elsewhere are brought for the ops that read them. `load` writes an input or label;
// `mean_counts` is by op, or empty (load_counts.h). Which micro-batch it is matters where they are
// unequal: the mean of their losses is that of the batch. No step may run at the same time.
double evaluate_loss(const TrainingGraph& training, Executor& executor,
                     const std::function<void(TensorId, std::span<std::byte>)>& load,
                     const std::vector<double>& mean_counts, int32_t micro_batch = 0);

}  // namespace windlass
