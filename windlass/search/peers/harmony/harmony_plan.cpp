#include "windlass/search/peers/harmony/harmony_plan.h"

#include <algorithm>

namespace windlass {
MicroBatchSizes micro_batch_sizes(const LayerProfile& profile, int64_t samples) {
  MicroBatchSizes result;
  const int64_t most = std::min(samples, profile.forward.sizes.back());
  for (int64_t size = 1; size <= most; ++size) {
    const int64_t parts = (samples + size - 1) / size;
    if ((samples + parts - 1) / parts != size) continue;
    const auto known = [&](const PassProfile& pass) {
      return pass.covers(size) && (samples % size == 0 || pass.covers(samples % size));
    };
    if (!known(profile.forward)) continue;
    result.forward.push_back(size);
    if (known(profile.backward)) result.backward.push_back(size);
  }
  return result;
}

int64_t harmony_peak_bytes(ChainTables& chain, const HarmonyPlan& plan) {
  int64_t peak = 0;
  const PassTable& backward = chain.backward(plan.backward_microbatch);
  for (const Pack& pack : plan.backward_packs)
    peak = std::max(peak, chain.backward_task_bytes(backward, pack, plan.backward_microbatch));
  if (plan.forward_packs.empty()) return peak;
  const PassTable& forward = chain.forward(plan.forward_microbatch);
  size_t next = 0;  // backward pack whose first layer comes next
  for (const Pack& pack : plan.forward_packs) {
    int64_t stash = 0;
    for (; next + 1 < plan.backward_packs.size() && plan.backward_packs[next].first <= pack.last;
         ++next)
      stash += chain.input(plan.backward_packs[next].first, plan.forward_microbatch);
    peak = std::max(peak, chain.forward_task_bytes(forward, pack, plan.forward_microbatch, stash));
  }
  return peak;
}

void check_harmony_plan(const LayerProfile& profile, const HarmonyPlan& plan, int64_t minibatch) {
  check_pack_strategy(profile, harmony_runtime(plan), minibatch, plan.devices);
}

}  // namespace windlass
