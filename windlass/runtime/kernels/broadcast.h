// Sums over the axes along which an operand was broadcast.
#pragma once

#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

// Axes of a tensor of shape `to` along which one of shape `from` was broadcast.
std::vector<int64_t> broadcast_axes(at::IntArrayRef from, at::IntArrayRef to);

// `x`, which the kernel owns and which has the shape of the output, summed to the operand's shape.
void set_summed(Result& result, at::Tensor x);

// As set_summed, for a tensor that is not to be touched, times `factor`.
void set_scaled_sum(Result& result, const at::Tensor& x, double factor);

}  // namespace windlass
