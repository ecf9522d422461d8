// What people do with saved tensors without a planner.
#pragma once

#include <vector>

#include "windlass/strategy/strategy.h"

namespace windlass {

// Everything between the checkpoints of repeated blocks, or of about the square root of the number
// of cuts, is computed again; the rest is kept, or on the host if `send`. And everything on the
// host. Tensors that nobody makes stay as `base` has them.
std::vector<std::vector<MemoryAction>> named_policies(const TrainingGraph& training,
                                                      const Strategy& base, bool send);

}  // namespace windlass
