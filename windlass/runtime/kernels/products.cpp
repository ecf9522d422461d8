#include "windlass/runtime/kernels/products.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/threads.h"

namespace windlass {

namespace {

// Elements of 16-bit operands that are widened at a time.
constexpr int64_t kBlockElements = int64_t{1} << 20;

}  // namespace

int64_t widened_block_count(int64_t elements_each) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, elements_each));
}

at::Tensor folded_rows(const at::Tensor& x) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  return x.view({rows, x.size(-1)});
}

ProductTarget product_target(Result& result) {
  if (result.adds()) return {result.sum(), true};
  return {result.allocate(), false};
}

void put_product(const ProductTarget& to, const at::Tensor& value) {
  if (to.adds)
    to.out.add_(value);
  else
    to.out.copy_(value);
}

bool is_direct_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  constexpr int64_t kSmallProduct = 16 * 16 * 16;
  const at::ScalarType type = a.scalar_type();
  if (b.scalar_type() != type || out.scalar_type() != type) return false;
  return !is_narrow(type) ||
         (is_multiplied(type) && a.size(-2) * a.size(-1) * b.size(-1) > kSmallProduct);
}

int64_t blas_work(const at::Tensor& a, const at::Tensor& b) {
  return is_narrow(a.scalar_type()) ? 0 : a.numel() * b.size(-1);
}

void multiply_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                   ProductTarget to) {
  if (is_direct_product(a, b, to.out)) {
    // Rows or columns at a time, whichever are more.
    const int64_t axis = a.size(0) >= b.size(1) ? 0 : 1;
    const auto part = [&](int64_t begin, int64_t end) {
      const int64_t count = end - begin;
      at::Tensor out = to.out.narrow(axis, begin, count);
      const at::Tensor left = axis == 0 ? a.narrow(0, begin, count) : a;
      const at::Tensor right = axis == 0 ? b : b.narrow(1, begin, count);
      if (to.adds)
        out.addmm_(left, right);
      else if (bias.defined())
        at::addmm_out(out, bias.expand({a.size(0), b.size(1)}).narrow(axis, begin, count), left,
                      right);
      else
        at::mm_out(out, left, right);
    };
    divide_product(to.out.size(axis), blas_work(a, b), part);
    return;
  }
  const at::Tensor wide_b = widened(b), wide_bias = widened(bias);
  const int64_t rows = a.size(0), step = widened_block_count(a.size(1) + b.size(1));
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const at::Tensor block = widened(a.narrow(0, row, count));
    put_product({to.out.narrow(0, row, count), to.adds},
                bias.defined() ? at::addmm(wide_bias, block, wide_b) : at::mm(block, wide_b));
  }
}

void multiply_over_rows(const at::Tensor& a, const at::Tensor& b, ProductTarget to) {
  if (!is_narrow(a) || is_direct_product(a.t(), b, to.out)) {
    multiply_into(a.t(), b, {}, std::move(to));
    return;
  }
  // An fp32 sum takes the products directly.
  const bool direct = to.adds && to.out.scalar_type() == at::kFloat;
  at::Tensor sum = direct ? to.out : at::zeros(to.out.sizes(), at::kFloat);
  const int64_t rows = a.size(0), step = widened_block_count(a.size(1) + b.size(1));
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    sum.addmm_(widened(a.narrow(0, row, count)).t(), widened(b.narrow(0, row, count)));
  }
  if (!direct) put_product(to, sum);
}

}  // namespace windlass
