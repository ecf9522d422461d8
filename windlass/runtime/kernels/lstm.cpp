// Long short-term memory: i, f, o = logistic(W x + R h + b), g = tanh(W x + R h + b),
// c' = f c + i g, h' = o tanh(c').

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/recurrent_kernels.h"

namespace windlass {
namespace {

// The gates of one step, [b, 4 h], in the order of the weights.
struct LstmGates {
  at::Tensor i, f, g, o;

  LstmGates(const RecurrentAttrs& attrs, const at::Tensor& rows) {
    const bool onnx = attrs.gates == GateOrder::Onnx;
    const auto gate = [&](int64_t at) { return rows.narrow(1, at * attrs.hidden, attrs.hidden); };
    i = gate(0);
    f = gate(onnx ? 2 : 1);
    g = gate(onnx ? 3 : 2);
    o = gate(onnx ? 1 : 3);
  }
};

void activate(const RecurrentAttrs& attrs, const at::Tensor& rows) {
  const int64_t h = attrs.hidden;
  if (attrs.gates == GateOrder::Onnx) {  // i o f g
    rows.narrow(1, 0, 3 * h).sigmoid_();
    rows.narrow(1, 3 * h, h).tanh_();
    return;
  }
  rows.narrow(1, 0, 2 * h).sigmoid_();  // i f g o
  rows.narrow(1, 2 * h, h).tanh_();
  rows.narrow(1, 3 * h, h).sigmoid_();
}

}  // namespace

void lstm_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const at::Tensor x = widened(call.input(0));
  const at::Tensor w = widened(call.input(1)), r = widened(call.input(2));
  const at::Tensor bias = call.has(3) ? widened(call.input(3)) : at::Tensor();
  const at::Tensor h0 = call.has(4) ? widened(call.input(4)) : at::Tensor();
  const at::Tensor c0 = call.has(5) ? widened(call.input(5)) : at::Tensor();
  const at::ScalarType type = x.scalar_type();
  const RecurrentLayer layer(attrs, x.sizes());
  const int64_t h = layer.hidden;
  const auto auxiliary = [&](size_t i) {
    return call.wants_auxiliary(i) ? &call.auxiliaries[i] : nullptr;
  };
  const Shape state = {layer.directions, layer.batch, h};
  WideResult y(&call.outputs[0], {layer.steps, layer.directions, layer.batch, h}, type);
  WideResult last_h(&call.outputs[1], state, type), last_c(&call.outputs[2], state, type);
  WideResult gates(auxiliary(0), {layer.steps, layer.directions, layer.batch, 4 * h}, type);
  WideResult cells(auxiliary(1), {layer.steps, layer.directions, layer.batch, h}, type);
  for (int64_t d = 0; d < layer.directions; ++d) {
    const at::Tensor direction_gates = gates.tensor().select(1, d);
    const at::Tensor both = bias.defined()
                                ? bias[d].narrow(0, 0, 4 * h).add(bias[d].narrow(0, 4 * h, 4 * h))
                                : at::Tensor();
    multiply_inputs(x, w[d], both, direction_gates);
    const at::Tensor recurrent = r[d].t();
    at::Tensor hidden = layer.state(h0, d, type), cell = layer.state(c0, d, type);
    for (int64_t n = 0; n < layer.steps; ++n) {
      const int64_t t = layer.time(d, n);
      const at::Tensor rows = direction_gates[t];
      if (n > 0 || h0.defined()) rows.addmm_(hidden, recurrent);
      activate(attrs, rows);
      const LstmGates gate(attrs, rows);
      at::Tensor new_cell = cells.tensor()[t][d], new_hidden = y.tensor()[t][d];
      at::mul_out(new_cell, gate.f, cell);
      new_cell.addcmul_(gate.i, gate.g);
      at::tanh_out(new_hidden, new_cell);
      new_hidden.mul_(gate.o);
      cell = new_cell;
      hidden = new_hidden;
    }
    last_h.tensor()[d].copy_(hidden);
    last_c.tensor()[d].copy_(cell);
  }
  for (WideResult* result : {&y, &last_h, &last_c, &gates, &cells}) result->finish();
}

void lstm_backward(BackwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const at::Tensor r = widened(call.input(2));
  const at::Tensor gates = widened(call.auxiliary(0)), cells = widened(call.auxiliary(1));
  const at::Tensor c0 = call.has_input(5) ? widened(call.input(5)) : at::Tensor();
  const at::ScalarType type = r.scalar_type();
  const RecurrentLayer layer(attrs, call.shape(0));
  const int64_t h = layer.hidden, all_rows = layer.steps * layer.batch;
  RecurrentGradients gradients(call, type);
  at::Tensor x, w;
  if (gradients.wants(1)) x = widened(call.input(0)).view({all_rows, call.shape(0)[2]});
  if (gradients.wants(0)) w = widened(call.input(1));
  at::Tensor pre = at::empty({layer.steps, layer.batch, 4 * h}, type);  // before the activations
  for (int64_t d = 0; d < layer.directions; ++d) {
    at::Tensor dh = final_gradient(call, layer, 1, d, type);
    at::Tensor dc = final_gradient(call, layer, 2, d, type);
    const at::Tensor initial = layer.state(c0, d, type);
    for (int64_t n = layer.steps; n-- > 0;) {
      const int64_t t = layer.time(d, n);
      if (call.has_gradient(0)) dh.add_(call.gradient(0)[t][d]);
      const LstmGates gate(attrs, gates[t][d]);
      LstmGates to(attrs, pre[t]);
      const at::Tensor before = n > 0 ? cells[layer.time(d, n - 1)][d] : initial;
      const at::Tensor shaped = cells[t][d].tanh();
      at::sigmoid_backward_out(to.o, dh.mul(shaped), gate.o);
      dc.add_(at::tanh_backward(dh.mul_(gate.o), shaped));
      at::sigmoid_backward_out(to.i, dc.mul(gate.g), gate.i);
      at::sigmoid_backward_out(to.f, dc.mul(before), gate.f);
      at::tanh_backward_out(to.g, dc.mul(gate.i), gate.g);
      dc.mul_(gate.f);
      at::mm_out(dh, pre[t], r[d]);
    }
    const at::Tensor rows = pre.view({all_rows, 4 * h});
    add_input_gradients(gradients, rows, x, w, d, 0);
    if (gradients.wants(2)) {
      const at::Tensor h0 = call.has_input(4) ? widened(call.input(4)) : at::Tensor();
      const at::Tensor before =
          states_before(layer, call.output(0).select(1, d).to(type), layer.state(h0, d, type), d);
      gradients[2][d].addmm_(rows.t(), before.view({all_rows, h}));
    }
    if (gradients.wants(3)) gradients[3][d].view({2, 4 * h}).add_(rows.sum({0}));
    if (gradients.wants(4)) gradients[4][d].add_(dh);
    if (gradients.wants(5)) gradients[5][d].add_(dc);
  }
  gradients.finish();
}

}  // namespace windlass
