// Cuts of a chain into backward packs together with where their inputs wait, by dynamic programming
// under the memory that the backward pass has at each moment.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

struct StashPartition {
  std::vector<Pack> packs;       // empty if nothing fits
  std::vector<uint8_t> on_host;  // by pack: its input waits on the host
  double cost = 0;
  int64_t work = 0;  // steps that it took, a few nanoseconds each
};

// What packs need and cost. The loss pack has no stash.
struct StashCosts {
  int32_t layers = 0;
  int64_t cap = 0;
  // Bytes while a pack runs backward, stashes not counted.
  std::function<int64_t(Pack)> bytes;
  // Whether neither this pack nor any that ends later can fit.
  std::function<bool(Pack)> hopeless;
  // Bytes of the input of a layer: as long as it waits on the device, and the room that is needed
  // to bring it from the host.
  std::function<int64_t(int32_t)> stash, room;
  std::function<double(Pack)> cost;          // wherever its input waits
  std::function<double(int32_t)> host_cost;  // of an input that waits on the host
};

// The least sum of costs such that, while a pack runs, it and the inputs on the device of all packs
// before it stay below the cap. Stashes are distinguished by 1/64 of the cap: exact if they are
// multiples of that, close to it otherwise, and never above the cap. O(packs that fit x 64).
StashPartition min_stash_partition(const StashCosts& costs);

}  // namespace windlass
