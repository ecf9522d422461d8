// Packs of layers for a network: found on its chain of layers, held against its ops.
#pragma once

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {

// search_layers() on `chain`, the layers of `network` as chain_of_network() prices them. What is
// found fits at the grain of ops as well: if it does not, the search is repeated under a limit that
// is lower by what was missing. `network` is of the whole batch. LayerSearchResult::simulated_only
// says why the network cannot be carried out in packs, if it cannot.
LayerSearchResult search_network_packs(const Graph& network, const TrainingOptions& training,
                                       const LayerProfile& chain, const Machine& machine,
                                       const CostModel& cost, int64_t samples,
                                       const LayerSearchOptions& options = {});

}  // namespace windlass
