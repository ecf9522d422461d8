// One optimizer step in place, and the norm of gradients.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "windlass/graph/reference/update.h"

namespace windlass {

// Updates `weight` as torch.optim does, with the gradient times `gradient_scale`. All tensors are
// contiguous and of the weight's size. There are optimizer_state_count(kind) states of fp32, zeros
// before the first step; `step` counts from 1. Arithmetic is in fp32, in fp64 for fp64 weights. If
// `master` is given (fp32, for a 16-bit weight), it is what is updated, and the weight is its
// rounded copy.
//
// Nothing is allocated. The result does not depend on the number of threads.
void update_weight(OptimizerKind kind, const UpdateHyperparameters& hyperparameters, int64_t step,
                   double gradient_scale, at::Tensor& weight, const at::Tensor& gradient,
                   at::Tensor* master, std::span<at::Tensor> states);

// Sum of the squares of a contiguous tensor, in fp64, the same for any number of threads.
double sum_of_squares(const at::Tensor& gradient);

}  // namespace windlass
