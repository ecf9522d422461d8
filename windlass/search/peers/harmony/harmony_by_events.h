// Harmony's estimate the slow way: every event with all that it waits for, dispatched one by one.
// States the rules again, so that the fast estimator can be held against it.
#pragma once

#include "windlass/search/peers/harmony/estimate.h"

namespace windlass {

// Seconds of a step; infinity if events wait for each other in a circle. The plan must pass
// check_harmony_plan().
double harmony_seconds_by_events(ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch,
                                 bool prefetch, const HarmonyConstants& constants = {});

}  // namespace windlass
