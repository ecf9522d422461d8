// Layers of a network: the pieces between the cuts of its forward graph (blocks.h), the loss with
// the last one.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// By forward op: its layer, ascending from 0 without gaps. A layer begins with an op that computes.
// Ops of other passes are left out.
std::vector<int32_t> find_layers(const Graph& graph);

}  // namespace windlass
