// Packs of layers, lowered at the grain of ops: a step that can be carried out.
#pragma once

#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/packs.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// One step; everything is done at its end. `training` is of the whole batch, which every replica
// has an equal share of. What pack_tasks.h says holds, but ops are tasks of their own: what a layer
// does not need any more is freed op by op, a large layer moves in parts of whole tensors, and what
// the backward pass does not read is not recomputed. Data of the step is on the host. Throws
// Error{Input} if it is no strategy for the layers, the samples and the machine, or its window does
// not hold a pack; Error{Unsupported} as OpChain does, and if the devices are not alike and of one
// node.
TaskGraph lower_packs(const TrainingGraph& training, const PackStrategy& strategy,
                      const Machine& machine);

}  // namespace windlass
