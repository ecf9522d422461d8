// Products of matrices, into results or onto sums, in any float type.
//
// 16-bit operands that ATen does not multiply well are widened a block at a time: beside one
// operand or result of the size of a weight in fp32, workspace stays small however many rows there
// are.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

// Where a product goes: into the fresh tensor of a result, or onto its sum.
struct ProductTarget {
  at::Tensor out;
  bool adds;
};
ProductTarget product_target(Result& result);
void put_product(const ProductTarget& to, const at::Tensor& value);

// All axes but the last as one.
at::Tensor folded_rows(const at::Tensor& x);

// to[r, n] = a[r, k] b[k, n] + bias.
void multiply_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                   ProductTarget to);
// to[m, n] = a[r, m]^T b[r, n]: the sum over all rows.
void multiply_over_rows(const at::Tensor& a, const at::Tensor& b, ProductTarget to);

// Whether ATen's product of a [..., m, k] and b [..., k, n] into `out` is as good as in fp32. It
// leaves small 16-bit products to plain loops that round every partial sum.
bool is_direct_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);
// Multiplications that BLAS does: 16-bit products go elsewhere.
int64_t blas_work(const at::Tensor& a, const at::Tensor& b);
// How many pieces of so many elements are widened at a time.
int64_t widened_block_count(int64_t elements_each);

}  // namespace windlass
