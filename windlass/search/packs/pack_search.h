// The fastest packs under Harmony's estimate that were found, inside a limit that holds for every
// task with all its buffers.
#pragma once

#include <optional>

#include "windlass/search/peers/harmony/estimate.h"

namespace windlass {

struct PackSearchOptions {
  HarmonyConstants constants = {};
  int64_t effort = 80'000'000;  // events to estimate, about 4 ns each; a plan counts as 150 more
  uint64_t seed = 1;
  int32_t most_packs = 64;  // backward
  double byte_seconds = 0;  // that a byte moved by harmony_volume() counts beside the estimate
  // Whether to take a plan that moves no more than the one of Harmony's own search, if it is at
  // most 0.2 % slower than the fastest, or 1 % and faster than that one.
  bool below_harmony = true;
};

struct PackSearchResult {
  std::optional<HarmonyPlan> plan;  // nothing if none fits
  double seconds = 0;               // with what bytes count, unless below Harmony
  double lower_bound = 0;           // no plan of this mode is faster, whatever its packs
  int64_t peak_bytes = 0;           // of the largest task
  int64_t least_limit = 0;          // the smallest cap at which some plan that was tried fits
  int64_t tried = 0;                // estimates
};

// Micro-batch sizes are those that cut the samples evenly. For each backward size and number of
// packs the partition with the least largest cost (pipelines) or the least sum of costs (data
// parallel) is exact; the best of them, with all forward sizes and pack counts, are polished by
// descent and annealing on the estimate. Deterministic: effort is counted, not timed.
PackSearchResult search_packs(ChainTables& chain, HarmonyMode mode, int32_t devices,
                              int64_t minibatch, int64_t cap, bool prefetch,
                              const PackSearchOptions& options = {});

}  // namespace windlass
