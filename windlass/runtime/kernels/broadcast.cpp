#include "windlass/runtime/kernels/broadcast.h"

#include <utility>

#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

namespace windlass {
namespace {

// Sum of x over the broadcast axes, in the operand's shape. 16-bit results are accumulated in fp32.
at::Tensor summed(const Result& result, const at::Tensor& x, const std::vector<int64_t>& axes) {
  at::Tensor total = at::sum(x, axes, true);
  const at::IntArrayRef shape(result.type().shape);
  return total.sizes() == shape ? total : total.view(shape);
}

}  // namespace

std::vector<int64_t> broadcast_axes(at::IntArrayRef from, at::IntArrayRef to) {
  std::vector<int64_t> axes;
  const size_t extra = to.size() - from.size();
  for (size_t axis = 0; axis < to.size(); ++axis) {
    const bool repeated = axis < extra || (from[axis - extra] == 1 && to[axis] != 1);
    if (repeated) axes.push_back(static_cast<int64_t>(axis));
  }
  return axes;
}

void set_summed(Result& result, at::Tensor x) {
  const std::vector<int64_t> axes = broadcast_axes(result.type().shape, x.sizes());
  if (axes.empty())
    result.set(std::move(x));
  else
    result.set(summed(result, x, axes));
}

void set_scaled_sum(Result& result, const at::Tensor& x, double factor) {
  const std::vector<int64_t> axes = broadcast_axes(result.type().shape, x.sizes());
  const bool same = x.scalar_type() == scalar_type(result.type().dtype);
  if (!axes.empty()) {
    at::Tensor total = summed(result, x, axes);
    if (factor != 1) total.mul_(factor);
    result.set(std::move(total));
  } else if (result.adds()) {
    result.sum().add_(x, factor);
  } else if (factor == 1) {
    result.allocate().copy_(x);
  } else if (same) {
    at::mul_out(result.allocate(), x, factor);
  } else {
    result.allocate().copy_(x).mul_(factor);
  }
}

}  // namespace windlass
