// Harmony's own search, as a baseline: its packing heuristics, each stopping at the first number of
// packs that fits, and the best of the configurations that follow.
#pragma once

#include <optional>
#include <vector>

#include "windlass/search/peers/harmony/estimate.h"

namespace windlass {

struct HarmonyBaseline {
  HarmonyPlan plan;
  double seconds = 0;
  int64_t tried = 0;
};

// Harmony's balanced cut of layers into `count` packs: the running sum of weights at multiples of
// total / count, which is rounded down where weights are whole numbers. The layer whose sum reaches
// a multiple begins the next pack. Nothing if a pack would be empty.
std::vector<Pack> balanced_packs(const std::vector<double>& weights, int32_t count, bool whole);

// The fastest configuration of Harmony's procedure whose every task needs at most `cap` bytes;
// nothing if it finds none. Packs are cut under the check that Harmony itself makes and under that
// stricter one, whichever leads to the faster plan.
std::optional<HarmonyBaseline> harmony_own_search(ChainTables& chain, HarmonyMode mode,
                                                  int32_t devices, int64_t minibatch, int64_t cap,
                                                  bool prefetch);

}  // namespace windlass
