// Recomputation: which forward ops are run again before which backward op.
#pragma once

#include <vector>

#include "windlass/strategy/strategy.h"

namespace windlass {

struct RecomputePlan {
  // By op of the training graph: forward ops to run again right before it, in order. Each forward
  // op is run again at most once a micro-batch; its results live until their last reader.
  std::vector<std::vector<OpId>> before;
};

// A backward op needs what it reads of its forward op. What is saved and not recomputed is there,
// as are weights, data and what came from another stage; anything else is computed again from
// these.
RecomputePlan plan_recompute(const TrainingGraph& training, const Strategy& strategy,
                             const std::vector<int32_t>& stage_of_op,
                             const std::vector<TensorId>& roots);

// Stage of each op of the training graph: forward ops as given, backward ops with their forward op,
// sums of gradients where their last term is made, updates where their gradient is.
std::vector<int32_t> stages_of_training(const TrainingGraph& training, const Strategy& strategy);

}  // namespace windlass
