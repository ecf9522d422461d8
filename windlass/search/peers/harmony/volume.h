// What a step moves, by kind: of packed plans, of demand paging, and the least there can be.
#pragma once

#include <cstdint>

#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/task/packs/swap_volume.h"

namespace windlass {

// Of Harmony's runtime. A pipeline swaps the weights of every forward and backward task in, except
// layers that a device runs last forward and first backward; updates happen on the host. In data
// parallel runs every device swaps weights and boundaries, and one of them writes the gradients.
SwapVolume harmony_volume(const ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch);

// Of data (replicas on all devices) or pipeline parallelism whose devices page on demand, least
// recently used first, when the model is much larger than the device: for m micro-batches, weights
// (4 m + 2) times and gradients 2 m + 1 times, optimizer state in and out once, saved inputs of
// layers out and in. In data parallel runs that holds for each device.
SwapVolume paging_volume(const ChainTables& chain, HarmonyMode mode, int32_t devices,
                         int64_t minibatch, int64_t micro_batches);

// What any plan with updates on the host must move: every weight in and every gradient out once,
// the samples in.
SwapVolume least_volume(const ChainTables& chain, int64_t minibatch);

// Host memory of a plan: one copy of weights, buffers, gradients and optimizer state, however many
// devices there are, and what is stashed.
int64_t host_bytes(const ChainTables& chain, int64_t stash);
// What a Harmony plan has on the host at once: the stashes of all backward packs but the loss's.
int64_t harmony_stash_bytes(const ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch);

}  // namespace windlass
