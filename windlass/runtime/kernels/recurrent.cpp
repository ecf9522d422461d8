#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/recurrent_kernels.h"

namespace windlass {

at::Tensor RecurrentLayer::state(const at::Tensor& states, int64_t d, at::ScalarType type) const {
  return states.defined() ? states[d] : at::zeros({batch, hidden}, type);
}

WideResult::WideResult(Result* result, const Shape& shape, at::ScalarType type) : result_(nullptr) {
  const bool wanted = result != nullptr && result->wanted();
  if (wanted && scalar_type(result->type().dtype) == type) {
    tensor_ = result->allocate();
    return;
  }
  tensor_ = at::empty(shape, type);
  if (wanted) result_ = result;
}

void WideResult::finish() {
  if (result_ != nullptr) result_->set(std::move(tensor_));
}

void multiply_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& out) {
  const int64_t steps = out.size(0), batch = out.size(1), rows = out.size(2);
  const auto multiply = [&](int64_t begin, int64_t count, at::Tensor to) {
    const at::Tensor block = x.narrow(0, begin, count).view({count * batch, x.size(2)});
    if (bias.defined())
      at::addmm_out(to, bias.expand({count * batch, rows}), block, weight.t());
    else
      at::mm_out(to, block, weight.t());
  };
  if (steps == 1 || out.stride(0) == batch * out.stride(1)) {
    multiply(0, steps, out.as_strided({steps * batch, rows}, {out.stride(1), 1}));
    return;
  }
  // The other direction lies between the steps: a block of steps at a time goes through a buffer.
  constexpr int64_t kSweepElements = int64_t{1} << 18;
  const int64_t step = std::clamp<int64_t>(kSweepElements / std::max<int64_t>(1, batch * rows), 1,
                                           std::max<int64_t>(1, steps));
  at::Tensor buffer = at::empty({step * batch, rows}, out.scalar_type());
  for (int64_t t = 0; t < steps; t += step) {
    const int64_t count = std::min(step, steps - t);
    const at::Tensor block = buffer.narrow(0, 0, count * batch);
    multiply(t, count, block);
    out.narrow(0, t, count).copy_(block.view({count, batch, rows}));
  }
}

at::Tensor states_before(const RecurrentLayer& layer, const at::Tensor& after,
                         const at::Tensor& initial, int64_t d) {
  at::Tensor before = at::empty(after.sizes(), after.scalar_type());
  if (layer.steps == 0) return before;
  const bool backwards = layer.backwards(d);
  before[layer.time(d, 0)].copy_(initial);
  const int64_t rest = layer.steps - 1;
  before.narrow(0, backwards ? 0 : 1, rest).copy_(after.narrow(0, backwards ? 1 : 0, rest));
  return before;
}

RecurrentGradients::RecurrentGradients(BackwardCall& call, at::ScalarType type)
    : call_(call), sums_(call.results.size()) {
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (!call.wants(i)) continue;
    Result& result = call.results[i];
    const bool direct = result.adds() && result.sum().scalar_type() == type;
    sums_[i] = direct ? result.sum() : at::zeros(call.shape(i), type);
  }
}

void RecurrentGradients::finish() {
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (!sums_[i].defined()) continue;
    Result& result = call_.results[i];
    if (result.adds() && sums_[i].is_same(result.sum())) continue;
    result.set(std::move(sums_[i]));
  }
}

void add_input_gradients(const RecurrentGradients& gradients, const at::Tensor& g,
                         const at::Tensor& x, const at::Tensor& weight, int64_t d, int64_t begin) {
  if (gradients.wants(0)) {
    const at::Tensor& dx = gradients[0];
    dx.view({dx.size(0) * dx.size(1), dx.size(2)}).addmm_(g, weight[d].narrow(0, begin, g.size(1)));
  }
  if (gradients.wants(1)) gradients[1][d].narrow(0, begin, g.size(1)).addmm_(g.t(), x);
}

at::Tensor final_gradient(const BackwardCall& call, const RecurrentLayer& layer, size_t output,
                          int64_t d, at::ScalarType type) {
  if (!call.has_gradient(output)) return at::zeros({layer.batch, layer.hidden}, type);
  return call.gradient(output)[d].to(type, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace windlass
