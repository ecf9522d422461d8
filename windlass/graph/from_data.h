// What follows from the data of a batch alone, and so is known before anything is computed.
#pragma once

#include <optional>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// The ops that make `tensor` of inputs, labels, constants and buffers that no op writes, in their
// order. Nothing if weights, running statistics or random numbers have a part in it.
std::optional<std::vector<OpId>> ops_from_data(const Graph& graph, TensorId tensor);

}  // namespace windlass
