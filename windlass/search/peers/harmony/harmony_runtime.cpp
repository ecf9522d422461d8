#include "windlass/search/peers/harmony/harmony_runtime.h"

#include <algorithm>

namespace windlass {

HarmonyPlan harmony_plan_of(const PackStrategy& strategy) {
  return {.mode = strategy.depth == 1 ? HarmonyMode::Data : HarmonyMode::Pipeline,
          .devices = strategy.devices(),
          .forward_microbatch = strategy.forward_microbatch,
          .backward_microbatch = strategy.backward_microbatch,
          .forward_packs = strategy.forward_packs,
          .backward_packs = strategy.backward_packs};
}

PackStrategy harmony_runtime(const HarmonyPlan& plan) {
  PackStrategy strategy;
  const bool data = plan.mode == HarmonyMode::Data;
  strategy.replicas = data ? plan.devices : 1;
  const size_t tasks = plan.forward_packs.size() + plan.backward_packs.size();
  strategy.depth =
      data ? 1 : static_cast<int32_t>(std::min(tasks, static_cast<size_t>(plan.devices)));
  strategy.forward_microbatch = plan.forward_microbatch;
  strategy.backward_microbatch = plan.backward_microbatch;
  strategy.forward_packs = plan.forward_packs;
  strategy.backward_packs = plan.backward_packs;
  strategy.actions.assign(plan.backward_packs.size(), PackAction::Recompute);
  strategy.stash_on_host.assign(plan.backward_packs.size(), 1);
  strategy.device_update.assign(plan.backward_packs.size(), 0);
  strategy.keep_shares.assign(plan.backward_packs.size(), 0);
  strategy.piece_bytes = INT64_MAX;
  strategy.state_bytes = INT64_MAX;
  strategy.streams = false;
  return strategy;
}

void check_harmony_plan(const LayerProfile& profile, const HarmonyPlan& plan, int64_t minibatch) {
  check_pack_strategy(profile, harmony_runtime(plan), minibatch, plan.devices);
}

}  // namespace windlass
