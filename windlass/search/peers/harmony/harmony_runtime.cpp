#include "windlass/search/peers/harmony/harmony_runtime.h"

#include <algorithm>

#include "windlass/base/error.h"

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

void check_pack_strategy(const LayerProfile& profile, const PackStrategy& strategy,
                         int64_t minibatch, int64_t devices) {
  check_packs(strategy, static_cast<int64_t>(profile.layers()), minibatch, devices);
  // The share of a pipeline is what one alone would be asked to do.
  HarmonyPlan plan = harmony_plan_of(strategy);
  plan.mode = HarmonyMode::Pipeline;
  plan.devices = strategy.depth;
  check_harmony_plan(profile, plan, (minibatch + strategy.replicas - 1) / strategy.replicas);
}

}  // namespace windlass
