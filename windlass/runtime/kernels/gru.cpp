// Gated recurrent unit: z, r = logistic(W x + R h + b), h' = (1 - z) n + z h, with the candidate
// n = tanh(W x + b + r (R h + b)) if linear_before_reset, else tanh(W x + b + R (r h) + b).
//
// The saved gates hold z, r and n in the order of the weights, then the recurrent part of n before
// the reset gate.

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/recurrent_kernels.h"

namespace windlass {
namespace {

// The gates of one step, [b, 4 h]. z and r lie before n in either order.
struct GruGates {
  at::Tensor both, z, r, n, recurrent;

  GruGates(const RecurrentAttrs& attrs, const at::Tensor& rows) {
    const int64_t h = attrs.hidden;
    const bool onnx = attrs.gates == GateOrder::Onnx;
    both = rows.narrow(1, 0, 2 * h);
    z = rows.narrow(1, onnx ? 0 : h, h);
    r = rows.narrow(1, onnx ? h : 0, h);
    n = rows.narrow(1, 2 * h, h);
    recurrent = rows.narrow(1, 3 * h, h);
  }
};

}  // namespace

void gru_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const at::Tensor x = widened(call.input(0));
  const at::Tensor w = widened(call.input(1)), r = widened(call.input(2));
  const at::Tensor bias = call.has(3) ? widened(call.input(3)) : at::Tensor();
  const at::Tensor h0 = call.has(4) ? widened(call.input(4)) : at::Tensor();
  const at::ScalarType type = x.scalar_type();
  const RecurrentLayer layer(attrs, x.sizes());
  const int64_t h = layer.hidden;
  WideResult y(&call.outputs[0], {layer.steps, layer.directions, layer.batch, h}, type);
  WideResult last(&call.outputs[1], {layer.directions, layer.batch, h}, type);
  WideResult gates(call.wants_auxiliary(0) ? &call.auxiliaries[0] : nullptr,
                   {layer.steps, layer.directions, layer.batch, 4 * h}, type);
  for (int64_t d = 0; d < layer.directions; ++d) {
    // The recurrent bias of z and r joins the input's; that of n stays with R's product.
    at::Tensor input_bias, candidate_bias;
    if (bias.defined()) {
      input_bias = bias[d].narrow(0, 0, 3 * h).clone();
      input_bias.narrow(0, 0, 2 * h).add_(bias[d].narrow(0, 3 * h, 2 * h));
      candidate_bias = bias[d].narrow(0, 5 * h, h).expand({layer.batch, h});
    }
    const at::Tensor direction_gates = gates.tensor().select(1, d);
    multiply_inputs(x, w[d], input_bias, direction_gates.narrow(2, 0, 3 * h));
    const at::Tensor both_weight = r[d].narrow(0, 0, 2 * h).t();
    const at::Tensor candidate_weight = r[d].narrow(0, 2 * h, h).t();
    at::Tensor hidden = layer.state(h0, d, type);
    for (int64_t n = 0; n < layer.steps; ++n) {
      const int64_t t = layer.time(d, n);
      GruGates gate(attrs, direction_gates[t]);
      gate.both.addmm_(hidden, both_weight).sigmoid_();
      const at::Tensor operand = attrs.linear_before_reset ? hidden : gate.r.mul(hidden);
      if (candidate_bias.defined())
        at::addmm_out(gate.recurrent, candidate_bias, operand, candidate_weight);
      else
        at::mm_out(gate.recurrent, operand, candidate_weight);
      if (attrs.linear_before_reset)
        gate.n.addcmul_(gate.r, gate.recurrent).tanh_();
      else
        gate.n.add_(gate.recurrent).tanh_();
      at::Tensor new_hidden = y.tensor()[t][d];
      at::lerp_out(new_hidden, gate.n, hidden, gate.z);
      hidden = new_hidden;
    }
    last.tensor()[d].copy_(hidden);
  }
  for (WideResult* result : {&y, &last, &gates}) result->finish();
}

void gru_backward(BackwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const at::Tensor r = widened(call.input(2));
  const at::Tensor gates = widened(call.auxiliary(0));
  const at::Tensor h0 = call.has_input(4) ? widened(call.input(4)) : at::Tensor();
  const at::ScalarType type = r.scalar_type();
  const RecurrentLayer layer(attrs, call.shape(0));
  const int64_t h = layer.hidden, all_rows = layer.steps * layer.batch;
  RecurrentGradients gradients(call, type);
  at::Tensor x, w;
  if (gradients.wants(1)) x = widened(call.input(0)).view({all_rows, call.shape(0)[2]});
  if (gradients.wants(0)) w = widened(call.input(1));
  // Gradients before the activations: z and r, what R's product for n receives, what W's receives.
  at::Tensor pre = at::empty({layer.steps, layer.batch, 4 * h}, type);
  for (int64_t d = 0; d < layer.directions; ++d) {
    const at::Tensor before =
        states_before(layer, call.output(0).select(1, d).to(type), layer.state(h0, d, type), d);
    at::Tensor dh = final_gradient(call, layer, 1, d, type);
    for (int64_t n = layer.steps; n-- > 0;) {
      const int64_t t = layer.time(d, n);
      if (call.has_gradient(0)) dh.add_(call.gradient(0)[t][d]);
      const GruGates gate(attrs, gates[t][d]);
      GruGates to(attrs, pre[t]);
      at::Tensor &product_gradient = to.n, &candidate_gradient = to.recurrent;
      at::Tensor carry = dh.mul(gate.z);
      at::tanh_backward_out(candidate_gradient, dh.sub(carry), gate.n);
      at::sigmoid_backward_out(to.z, before[t].sub(gate.n).mul_(dh), gate.z);
      if (attrs.linear_before_reset) {
        at::mul_out(product_gradient, candidate_gradient, gate.r);
        at::sigmoid_backward_out(to.r, candidate_gradient.mul(gate.recurrent), gate.r);
        carry.addmm_(pre[t].narrow(1, 0, 3 * h), r[d]);
      } else {
        product_gradient.copy_(candidate_gradient);
        const at::Tensor operand_gradient = at::mm(product_gradient, r[d].narrow(0, 2 * h, h));
        at::sigmoid_backward_out(to.r, operand_gradient.mul(before[t]), gate.r);
        carry.addcmul_(operand_gradient, gate.r);
        carry.addmm_(to.both, r[d].narrow(0, 0, 2 * h));
      }
      dh = carry;
    }
    const GruGates all(attrs, pre.view({all_rows, 4 * h}));
    add_input_gradients(gradients, all.both, x, w, d, 0);
    add_input_gradients(gradients, all.recurrent, x, w, d, 2 * h);
    if (gradients.wants(2)) {
      gradients[2][d].narrow(0, 0, 2 * h).addmm_(all.both.t(), before.view({all_rows, h}));
      // GruGates of all steps of this direction, [s, b, 4 h].
      if (!attrs.linear_before_reset) {
        const int64_t reset = attrs.gates == GateOrder::Onnx ? h : 0;
        before.mul_(gates.select(1, d).narrow(2, reset, h));
      }
      gradients[2][d].narrow(0, 2 * h, h).addmm_(all.n.t(), before.view({all_rows, h}));
    }
    if (gradients.wants(3)) {
      const at::Tensor sums = pre.view({all_rows, 4 * h}).sum({0});
      const at::Tensor bias = gradients[3][d];
      bias.narrow(0, 0, 2 * h).add_(sums.narrow(0, 0, 2 * h));
      bias.narrow(0, 2 * h, h).add_(sums.narrow(0, 3 * h, h));
      bias.narrow(0, 3 * h, 3 * h).add_(sums.narrow(0, 0, 3 * h));
    }
    if (gradients.wants(4)) gradients[4][d].add_(dh);
  }
  gradients.finish();
}

}  // namespace windlass
