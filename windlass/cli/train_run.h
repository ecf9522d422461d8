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

// Runs to the last step or to Ctrl-C; prints as it goes on. `ranks`: the processes that train
// together, of which the first one prints and writes; null: this one is alone.
void run_training(const TrainFlags& flags, const PreparedRun& prepared, int threads,
                  Ranks* ranks = nullptr);

}  // namespace windlass
