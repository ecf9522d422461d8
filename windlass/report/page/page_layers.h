// What a strategy decides, layer by layer, with equal layers told once.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "windlass/graph/differentiate.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// A list of rows in the order of the forward pass, one for the repetitions of a block that a stage
// has: {name, layers, split, saved, weights, stage, group, parts}. Those of them that are decided
// alike and follow each other are one of its `parts`: {name, layers, split, saved, weights, ops},
// with what is decided for each op of the first: {name, kind, split, saved, weights}. `saved`
// counts bytes of all micro-batches by action, of all layers that a row or part is about; `weights`
// says where they live. Of packs of layers: a row a pack.
// `network` is the graph of the whole batch, which has the same ops as the forward pass.
nlohmann::ordered_json page_layers_json(const Graph& network, const TrainingGraph& training,
                                        const Strategy& strategy);

}  // namespace windlass
