// Harmony's plans and windlass's strategies for packs of layers: one in terms of the other.
#pragma once

#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// The same packs in Harmony's terms.
HarmonyPlan harmony_plan_of(const PackStrategy& strategy);
// A plan as Harmony's runtime carries it out.
PackStrategy harmony_runtime(const HarmonyPlan& plan);

// check_pack_strategy() of a plan as Harmony's runtime carries it out.
void check_harmony_plan(const LayerProfile& profile, const HarmonyPlan& plan, int64_t minibatch);

}  // namespace windlass
