// A change of a strategy that can be taken back, and a number for the strategy that follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/strategy/strategy.h"

namespace windlass {

// What was changed, and what was there before.
struct Proposal {
  enum class What : uint8_t { Sharding, Saved, Weight, Prefetch, Bucket };
  struct Change {
    What what = What::Sharding;
    int32_t index = 0;
    int64_t before = 0;
  };
  std::vector<Change> changes;  // in the order they were made
  std::vector<Stage> stages;    // as they were, if they changed
};

// Each changes one decision, and writes it down. False if the decision was so already.
bool set_sharding(Strategy& strategy, size_t op, int32_t sharding, Proposal& proposal);
bool set_saved(Strategy& strategy, size_t s, MemoryAction action, Proposal& proposal);
bool set_weight(Strategy& strategy, size_t u, const Residency& residency, Proposal& proposal);

void take_back(Strategy& strategy, const Proposal& proposal);

// Equal strategies have equal keys, as long as their lists of shardings are the same one. The key
// after a proposal follows from the one before.
uint64_t strategy_key(const Strategy& strategy);
uint64_t strategy_key_after(uint64_t key, const Strategy& changed, const Proposal& proposal);

}  // namespace windlass
