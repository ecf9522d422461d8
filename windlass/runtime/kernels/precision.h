// In which type a kernel computes. Values of 16 bits are stored, but sums of products are formed in
// fp32. ATen's own 16-bit products do that where oneDNN has the instructions for it; elsewhere they
// are absent, or round partial sums, or are slow, and operands are widened to fp32 first.
#pragma once

#include <ATen/core/Tensor.h>

namespace windlass {

inline bool is_narrow(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }
inline bool is_narrow(const at::Tensor& tensor) { return is_narrow(tensor.scalar_type()); }

// Whether ATen multiplies and convolves this type well: all but fp16, and bf16 where oneDNN does.
bool is_multiplied(at::ScalarType type);

// The tensor itself, or an fp32 copy if it has 16 bits. Undefined stays undefined.
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && is_narrow(tensor) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace windlass
