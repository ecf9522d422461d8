// The reference simulator: the rules of simulate.h, each carried out as it is written, at every
// moment, for everything. Shares no code with the simulator it is held against. Slow: a moment
// costs O(lanes x lists + traffic x links).
#pragma once

#include "windlass/sim/simulate.h"

namespace windlass {

SimResult simulate_naively(const TaskGraph& graph, const TaskTimes& times,
                           const SimOptions& options = {});

}  // namespace windlass
