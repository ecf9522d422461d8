// What happens without planning: data or pipeline parallel training on devices that page on demand.
// The baseline that memory virtualisation is.
#pragma once

#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/volume.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/packs/pack_teams.h"

namespace windlass {

struct PagingCost {
  double seconds = 0;
  SwapVolume volume;
};

// One step of `minibatch` samples in micro-batches of `size`: data parallel on all `devices`, or a
// pipeline of as many stages of equal computing time, all micro-batches forward, then all backward.
// Each device holds at most `limit` bytes of its weights, gradients, optimizer state and saved
// activations, in pages of a layer; a page that is missing is brought in when a layer needs it,
// after the least recently used ones have been written back, clean or not. Nothing is brought in
// ahead. Updates run on the device as each layer's gradients are final, in no time of their own.
PagingCost simulate_paging(ChainTables& chain, const Machine& machine, HarmonyMode mode,
                           int32_t devices, int64_t minibatch, int64_t size, int64_t limit);

}  // namespace windlass
