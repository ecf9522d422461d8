// Tensors that rest between steps, as wholes: put together from the slots that have parts of them,
// and cut up again.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/run/training.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

// Everything that is there at the start of a step and at its end, each tensor once.
std::vector<PersistentTensor> resting_tensors(const TrainingGraph& training, const TaskGraph& tasks,
                                              const Program& program, Slots& slots);

// Puts the parts of a whole tensor into the slots of a buffer, as Program::placed says.
void scatter(Slots& slots, const Program& program, BufferId buffer, DType dtype,
             std::span<const std::byte> whole);

}  // namespace windlass
