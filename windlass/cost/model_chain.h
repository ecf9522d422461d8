// A network as a chain of layers, priced by the cost model: what a layer profile measures, for
// networks that nobody has profiled.
#pragma once

#include "windlass/cost/cost_model.h"
#include "windlass/cost/layer_profile.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"

namespace windlass {

// The bytes of a training step as a chain of layers: weights, buffers, optimizer state, what is
// tied, and inputs. A weight that several layers read is listed with each of them; its optimizer
// state with the first one. Times and peaks are zero, at any micro-batch size up to `samples`, of
// which the step is.
LayerProfile bytes_of_layers(const TrainingGraph& training, const std::vector<int32_t>& layer_of,
                             int64_t samples);

// Layers are those of network_layers.h.
// `network` is of the whole batch, with a loss; sizes are the divisors of its samples up to `most`.
// Times are sums of the prices of ops; recomputing a layer takes what its forward pass does. Peaks
// are those of layer_peaks.h: what ops have alive. A weight that several layers read is moved with
// each of them, and so is its gradient; its optimizer state and its update count once, for the
// first one. Tensors that are read all along the network are not moved with the layers. Updates
// are priced on the host of the first device. Throws Error{Unsupported} if the batch cannot be cut
// or the network not either.
LayerProfile chain_of_network(const Graph& network, const TrainingOptions& training,
                              const Machine& machine, const CostModel& cost, int64_t most = 64);

}  // namespace windlass
