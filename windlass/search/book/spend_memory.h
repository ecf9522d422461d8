// From a frugal strategy that fits to a faster one that still does.
#pragma once

#include <functional>

#include "windlass/search/book/evaluate.h"

namespace windlass {

struct Candidate {
  Strategy strategy;
  Nanoseconds time = 0;
};

// Keeps saved tensors that are recomputed or moved, those first that save most time for a byte, as
// long as it fits and helps; then tries for the rest whether moving or recomputing is cheaper.
// Every step is simulated inside of the limits. At most about 100 simulations a round for each of
// the three actions.
void spend_memory(const TrainingGraph& training, Evaluator& evaluator, Candidate& best,
                  const std::function<bool()>& out_of_time);

}  // namespace windlass
