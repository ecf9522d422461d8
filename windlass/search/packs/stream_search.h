// The fastest way to stream packs of layers through the devices of a machine that was found, by
// windlass's own simulator.
#pragma once

#include <functional>
#include <optional>

#include "windlass/search/packs/stream_pricer.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

struct StreamSearchOptions {
  std::optional<HarmonyMode> mode = std::nullopt;
  int32_t devices = 0;              // exactly so many; 0: any number
  bool equal_shares = false;        // replicas have the same number of samples each
  int64_t effort = 3'000'000;       // tasks to simulate, about 0.15 us each
  std::function<bool()> stop = {};  // asked now and then: whether to return the best so far
};

struct StreamSearchResult {
  std::optional<PackStrategy> strategy;  // nothing if none fits
  StreamCost cost;
  double lower_bound = 0;   // seconds; no strategy that was looked for is faster
  int64_t least_limit = 0;  // if nothing fits: the smallest limit at which something tried would
  int64_t tried = 0;        // simulations
};

// Data parallel, pipelines, and replicas of pipelines. For each shape and each pair of micro-batch
// sizes that computing alone does not rule out: packs by exact partitions under several limits for
// a task; inputs of packs stay on the device from the last pack backwards as far as memory goes;
// what is left holds weights. Then local search on the simulator. Deterministic.
StreamSearchResult search_streams(ChainTables& chain, const Machine& machine, int64_t minibatch,
                                  int64_t limit, const StreamSearchOptions& options = {});

}  // namespace windlass
