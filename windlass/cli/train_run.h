// A training run: its steps, what is printed and written of them.
#pragma once

#include "windlass/cli/subject.h"
#include "windlass/cli/train_flags.h"

namespace windlass {

// What is trained and how: from a plan, from a named strategy, or searched for now.
struct PreparedRun {
  Subject subject;
  SimulatedStep step;
};

// Runs to the last step or to Ctrl-C; prints as it goes on.
void run_training(const TrainFlags& flags, const PreparedRun& prepared, int threads);

}  // namespace windlass
