// A network as a chain of layers, priced by the cost model: what a layer profile measures, for
// networks that nobody has profiled.
#pragma once

#include "windlass/cost/cost_model.h"
#include "windlass/cost/layer_profile.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"

namespace windlass {

// Layers are the pieces between cuts of the forward graph (blocks.h), the loss with the last one.
// `network` is of the whole batch, with a loss; sizes are the divisors of its samples up to `most`.
// Times are sums of the prices of ops; recomputing a layer takes what its forward pass does.
// Assumptions on memory: a forward pass holds the operands of one op at a time, a backward pass all
// that the layer saves and the operands of one op. A weight that several layers read is moved with
// each of them, and so is its gradient; its optimizer state and its update count once, for the
// first one. Tensors that are read all along the network are not moved with the layers. Updates
// are priced on the host of the first device. Throws Error{Unsupported} if the batch cannot be cut
// or the network not either.
LayerProfile chain_of_network(const Graph& network, const TrainingOptions& training,
                              const Machine& machine, const CostModel& cost, int64_t most = 64);

}  // namespace windlass
