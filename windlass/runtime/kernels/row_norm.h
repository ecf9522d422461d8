// Normalisation of the rows that the axes from `axis` on form, in one pass over memory: RMS
// normalisation, which ATen lacks, and layer normalisation of 16-bit values with statistics and
// sums in fp32, or of pieces of the rows.
#pragma once

#include <cstdint>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

enum class RowNorm : uint8_t {
  Centered,  // auxiliaries: mean, 1 / deviation
  Rms,       // auxiliary: 1 / root mean square
};

// For calls with LayerNormAttrs, of whole rows and of pieces.
void row_norm_forward(ForwardCall& call, RowNorm form);
void row_norm_backward(BackwardCall& call, RowNorm form);
void row_norm_begin(const ForwardCall& call, RowNorm form, at::Tensor& statistics);
void row_norm_begin_backward(const BackwardCall& call, RowNorm form, at::Tensor& statistics);

}  // namespace windlass
