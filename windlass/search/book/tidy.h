// Decisions that do not help are taken back, so that a plan says only what matters.
#pragma once

#include "windlass/search/book/spend_memory.h"

namespace windlass {

// Actions, homes of weights and paces are set to the plain ones, many at a time, wherever the step
// still fits and is no slower. At most `simulations`.
void tidy(Evaluator& evaluator, Candidate& best, int64_t simulations);

}  // namespace windlass
