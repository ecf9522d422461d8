// Plans for chains of layers larger than device memory: the entry of this folder. A plan says which
// layers form packs, how the samples are cut, and what a step then takes, in time and in bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/machine/machine.h"
#include "windlass/plan/packs/pack_results.h"
#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/volume.h"

namespace windlass {

enum class LayerCost : uint8_t {
  Windlass,  // the simulator, on the machine's links
  Harmony,   // Harmony's estimate, with its constants instead of the machine's
};

struct LayerSearchOptions {
  std::optional<HarmonyMode> mode = std::nullopt;  // nothing: whichever is faster
  LayerCost cost = LayerCost::Windlass;
  int32_t devices = 0;   // of the machine, the first so many; 0: all under Harmony's estimate, any
                         // number of them under the simulator
  bool prefetch = true;  // of Harmony's estimate alone
  bool equal_shares = false;        // replicas have the same number of samples each
  bool baselines = true;            // what Harmony and demand paging take, under the simulator
  double effort = 1;                // relative to the usual, under the simulator
  std::function<bool()> stop = {};  // asked now and then: whether to return the best so far
};

// Plans a step over `minibatch` samples. All devices of the machine must be alike and belong to one
// node: Error{Unsupported} otherwise. Throws Error{Input} if the profile knows no micro-batch size
// that cuts the samples, or if there are not so many devices. Deterministic, except for `seconds`.
LayerSearchResult search_layers(const LayerProfile& profile, const Machine& machine,
                                int64_t minibatch, const LayerSearchOptions& options = {});

// What a strategy takes by the simulator: everything of a result but what comes of searching.
// Infeasible, with the reason, if it does not fit the machine. Throws Error{Input} if it is no
// strategy for the chain and the machine, and as search_layers() does. `baselines`: with what
// Harmony and demand paging take.
LayerSearchResult simulate_packs(const LayerProfile& profile, const Machine& machine,
                                 int64_t minibatch, const PackStrategy& strategy,
                                 bool baselines = false);

}  // namespace windlass
