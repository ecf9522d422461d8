// The part of a step that an evaluation needs: the tasks of its forward pass, on the same devices,
// in the same buffers, with the ops as a trained model uses them.
#pragma once

#include "windlass/graph/differentiate.h"
#include "windlass/plan/step.h"

namespace windlass {

// Dropout keeps everything, batch norms use their running statistics and change nothing. Ops and
// tensors keep their numbers.
TrainingGraph evaluation_graph(const TrainingGraph& training);

// The tasks of a step that the loss follows from, priced as in the step and simulated inside the
// same limits. Buffers keep their numbers: those of a program of these tasks are the slots of the
// step's program. What is kept for the backward pass alone is neither made nor held. Throws
// Error{Unsupported} if the loss follows from something that a forward pass has not, or if a
// simulation does not end.
SimulatedStep evaluation_step(const TrainingGraph& training, const SimulatedStep& step);

}  // namespace windlass
