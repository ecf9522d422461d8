// Harmony's plans and windlass's strategies for packs of layers: one in terms of the other.
#pragma once

#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// The same packs in Harmony's terms.
HarmonyPlan harmony_plan_of(const PackStrategy& strategy);
// A plan as Harmony's runtime carries it out.
PackStrategy harmony_runtime(const HarmonyPlan& plan);

// check_packs(), and that the profile knows the micro-batch sizes, that of the remaining samples
// included. Throws Error{Input}.
void check_pack_strategy(const LayerProfile& profile, const PackStrategy& strategy,
                         int64_t minibatch, int64_t devices);

}  // namespace windlass
