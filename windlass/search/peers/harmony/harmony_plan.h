// Harmony's plans: a step as a list of coarse tasks, each one pack of consecutive layers over all
// micro-batches, and the memory that each task needs. Facts and names are those of Li et al.,
// "Harmony: Overcoming the hurdles of GPU memory capacity to train massive DNN models on commodity
// servers", VLDB 2022, and of the program released with it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "windlass/task/packs/chain_tables.h"

namespace windlass {

// Samples that the busiest device sees of a minibatch.
inline int64_t samples_of_device(HarmonyMode mode, int64_t minibatch, int32_t devices) {
  return mode == HarmonyMode::Data ? (minibatch + devices - 1) / devices : minibatch;
}

// Micro-batch sizes that cut a number of samples as evenly as the number of parts allows and that
// the profile knows, the rest included; ascending. Backward sizes are known to both passes.
struct MicroBatchSizes {
  std::vector<int64_t> forward, backward;
};
MicroBatchSizes micro_batch_sizes(const LayerProfile& profile, int64_t samples);

// The largest task of a plan, in bytes, by ChainTables.
int64_t harmony_peak_bytes(ChainTables& chain, const HarmonyPlan& plan);

// check_pack_strategy() of a plan as Harmony's runtime carries it out.
void check_harmony_plan(const LayerProfile& profile, const HarmonyPlan& plan, int64_t minibatch);

}  // namespace windlass
