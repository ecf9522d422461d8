// The order of work: which stage runs which micro-batch when, on each group of devices.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/strategy/strategy.h"

namespace windlass {

// Forward or backward pass of one micro-batch through one stage.
struct WorkItem {
  int32_t stage = 0;
  int32_t micro_batch = 0;
  bool backward = false;
  bool operator==(const WorkItem&) const = default;
};

// What each group does, in order. By group of the strategy.
//   AllAtOnce  F0 B0 F1 B1 ...
//   GPipe      F0 .. Fm-1, then the backward passes in reverse
//   OneFOneB   p - rank forward passes to warm up, then one forward and one backward in turn, then
//              the remaining backward passes; with several stages per group, the interleaved
//              schedule of Narayanan et al. 2021 (chunks of p micro-batches)
std::vector<std::vector<WorkItem>> group_orders(const Strategy& strategy);

// One order of all items in which each comes after what it depends on and which agrees with every
// group's own order. Throws Error{Input} if the groups would wait for each other.
std::vector<WorkItem> global_order(const Strategy& strategy);

}  // namespace windlass
