// In which type a kernel computes. Values of 16 bits are stored, but sums of products are formed in
// fp32: ATen's 16-bit CPU kernels are either absent, or round partial sums, or run at a fraction of
// the speed of fp32 where the processor has no 16-bit instructions.
#pragma once

#include <ATen/core/Tensor.h>

namespace windlass {

inline bool is_narrow(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }
inline bool is_narrow(const at::Tensor& tensor) { return is_narrow(tensor.scalar_type()); }

// The tensor itself, or an fp32 copy if it has 16 bits. Undefined stays undefined.
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && is_narrow(tensor) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace windlass
