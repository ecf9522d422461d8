// How full a memory gets in each phase of a simulated step.
#pragma once

#include "windlass/sim/simulate.h"

namespace windlass {

// Bytes at the fullest moment while forward ops are to come, then until the first update, then
// until the end; recomputation belongs to the backward pass. By the start of what brought them to
// life, so that their largest is SimResult::peaks. Of whole steps.
struct PhaseBytes {
  int64_t forward = 0, backward = 0, optimizer = 0;
};
PhaseBytes phase_peaks(const TaskGraph& graph, const TaskTimes& times, const SimResult& result,
                       MemoryId memory);

}  // namespace windlass
