// One optimizer step in double precision, as torch.optim defines it.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/attributes.h"

namespace windlass {

// Defaults are those of torch.optim, except weight_decay, which is 0 for all.
struct UpdateHyperparameters {
  double learning_rate = 1e-3;
  double momentum = 0.9;  // Momentum only; no dampening, not Nesterov
  double beta1 = 0.9;     // Adam and AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient, or for AdamW taken off the weight
};

// Updates `weight` and `states` in place. There are optimizer_state_count(kind) states, zeros
// before the first step: the velocity for momentum, both moments for Adam. `step` counts from 1.
void reference_update(OptimizerKind kind, const UpdateHyperparameters& hyperparameters,
                      int64_t step, std::vector<double>& weight,
                      const std::vector<double>& gradient,
                      std::vector<std::vector<double>>& states);

}  // namespace windlass
