// The slow reference of the trade of time against bytes with recomputation: every sharding, every
// action on what is saved, every home of the weights. Which ops run again is asked of
// plan_recompute(), not of the fates of single ops, and what the backward pass holds and moves is
// read off the whole assignment, not off pairs.
#pragma once

#include <optional>
#include <vector>

#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {

// The front of all, time ascending. All that an op saves has one action, and what is run again
// keeps nothing of what it makes; on several devices an op that is run again reads what is on the
// host only if its backward op reads it too. None if there were more than `most` assignments of
// shardings and actions.
std::optional<std::vector<TimeBytes>> trade_by_brute_force(const TrainingGraph& training,
                                                           const Machine& machine,
                                                           const CostModel& cost,
                                                           int64_t micro_batches, double most);

}  // namespace windlass
