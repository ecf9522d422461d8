// Batch and group normalisation in pieces: what pieces of a group of elements exchange, and how
// each ends with the merged statistics. Whole ops are ATen's (normalization.cpp).
#pragma once

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

// For calls with statistics; those that make them are in kernel.h.
void end_batch_norm(ForwardCall& call);
void end_batch_norm_gradient(BackwardCall& call);
void end_group_norm(ForwardCall& call);
void end_group_norm_gradient(BackwardCall& call);

}  // namespace windlass
