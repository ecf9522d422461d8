// An independent look at a finished simulation: does the timeline obey the rules of simulate.h, and
// are its peaks those of the timeline? Knows no simulator.
#pragma once

#include <string>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

// What is wrong, one line each ("task 12 starts at 40 before its predecessor 7 ends at 50"); empty
// if nothing is. Checks
//  - predecessors end before, lanes run in order of ids without overlap,
//  - a task starts when the last of these ends, or later if something else ends at that moment
//    (memory is freed by ends only),
//  - durations; of traffic: no faster than latency and volume alone on its links,
//  - links: in each period when a link is busy, no more passes than its capacity allows,
//  - every memory: its peak, the first moment of it, and the task that started then,
//  - makespan; that all tasks ran if the simulation is done.
// Rates of single flows within those bounds are not checked.
std::vector<std::string> check_timeline(const TaskGraph& graph, const TaskTimes& times,
                                        const SimResult& result);

}  // namespace windlass
