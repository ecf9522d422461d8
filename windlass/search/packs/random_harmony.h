// Random plans of Harmony, for tests.
#pragma once

#include "windlass/plan/packs/random_chain.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

inline HarmonyPlan random_plan(Rng& rng, int32_t layers, int32_t devices) {
  HarmonyPlan plan;
  plan.mode = rng.chance(0.5) ? HarmonyMode::Data : HarmonyMode::Pipeline;
  plan.devices = devices;
  plan.forward_microbatch = rng.integer(1, 8);
  plan.backward_microbatch = rng.chance(0.4) ? plan.forward_microbatch : rng.integer(1, 8);
  plan.backward_packs = random_packs(rng, layers, rng.uniform(0, 0.8));
  plan.forward_packs = random_packs(rng, plan.backward_packs.back().first, rng.uniform(0, 0.8));
  return plan;
}

}  // namespace windlass
