// See run/rehearsal.h.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/plan/step.h"
#include "windlass/run/rehearsal.h"

namespace windlass {

// In so many processes. Jobs run as in the executor: in the order of their counters, let in by the
// gates of their memories, one at a time on each thread; one that exchanges messages ends when all
// it has to do with have begun theirs. Throws Error{Input} if the plan cannot be divided so.
RehearsalReport rehearse(const TrainingGraph& training, const SimulatedStep& step,
                         const Machine& machine, const std::vector<int32_t>& sample_axes,
                         int32_t ranks);

}  // namespace windlass
