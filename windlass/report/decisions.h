// What a strategy decides, for people and for programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/graph/differentiate.h"
#include "windlass/plan/termination.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// Saved tensors and their bytes, of all micro-batches, by what becomes of them.
struct SavedTotal {
  int64_t tensors = 0;
  Bytes bytes = {};
};
std::map<MemoryAction, SavedTotal> saved_totals(const TrainingGraph& training,
                                                const Strategy& strategy);

// `fits`: or it is the one that needs least.
std::string decisions_text(const TrainingGraph& training, const Strategy& strategy,
                           const Machine& machine, bool fits);
nlohmann::ordered_json decisions_json(const TrainingGraph& training, const Strategy& strategy,
                                      const Machine& machine);
// How each kind of op is split, the most frequent first.
std::string splits_text(const TrainingGraph& training, const Strategy& strategy);
// What a larger or smaller limit would give.
std::string frontier_text(const std::vector<FrontierPoint>& frontier);

}  // namespace windlass
