// A whole training step by the interpreter: what runs are compared with.
#pragma once

#include <functional>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass {

// Values of the tensors of a graph, by tensor; without elements where there is none.
using TensorValues = std::vector<Array>;

// Where the random numbers of a forward op come from.
using RandomStates = std::function<RandomState(OpId)>;

// Runs the forward ops. `values` must hold what no op makes: inputs, labels, weights, buffers;
// constants are filled in. Inputs that ops write in place stay as they are. `mean_counts`, if any,
// is by op: PieceFacts::mean_count.
void reference_forward(const TrainingGraph& training, TensorValues& values,
                       const RandomStates& random, const std::vector<double>& mean_counts = {});

// Runs the forward and the backward ops; between the passes everything is forgotten but what the
// training graph says is saved. Afterwards `values` holds the gradients. Throws Error{Internal} if
// an op reads what is not there.
void reference_step(const TrainingGraph& training, TensorValues& values, const RandomStates& random,
                    const std::vector<double>& mean_counts = {});

}  // namespace windlass
