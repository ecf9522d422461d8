// Expert parallelism by rule: which ops work on rows in slots of experts, and along which loop
// their experts are split.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/strategy/layout.h"

namespace windlass {

// By forward op: the split of its loop over experts, or none (loop -1): what works on tokens. Rows
// go to the devices of their experts and back by an all-to-all of slots. Throws Error{Input} if the
// network has no rows in slots (graph/expert_slots.h), or the experts cannot be shared out equally.
std::vector<Split> expert_splits(const Graph& graph, size_t forward_ops, int32_t parts);

}  // namespace windlass
