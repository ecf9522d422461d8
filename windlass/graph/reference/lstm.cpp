// Long short-term memory: i, f, o = logistic(W x + R h + b), g = tanh(W x + R h + b), c' = f c + i
// g, h' = o tanh(c').

#include <cmath>

#include "windlass/graph/reference/recurrent.h"

namespace windlass::reference {
namespace {

constexpr int64_t kLstmGates = 4;

// Row of the first unit of each gate in W, R and the saved gates.
struct LstmRows {
  int64_t i, f, g, o;
};

LstmRows lstm_rows(const RecurrentAttrs& attrs) {
  const int64_t h = attrs.hidden;
  if (attrs.gates == GateOrder::Onnx) return {0, 2 * h, 3 * h, h};
  return {0, h, 2 * h, 3 * h};
}

}  // namespace

ForwardResult lstm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const Array& x = call.input(0);
  const RecurrentLayer layer(attrs, x.shape, kLstmGates);
  const LstmRows at = lstm_rows(attrs);
  const int64_t rows = layer.gate_rows(), hidden = layer.hidden;
  const Array* bias = call.has(3) ? &call.input(3) : nullptr;
  const Array* h0 = call.has(4) ? &call.input(4) : nullptr;
  const Array* c0 = call.has(5) ? &call.input(5) : nullptr;
  Array y(layer.step_shape(hidden)), h_n(layer.state_shape()), c_n(layer.state_shape());
  Array all_gates(layer.step_shape(rows)), cells(layer.step_shape(hidden));
  for (int64_t d = 0; d < layer.directions; ++d) {
    for (int64_t b = 0; b < layer.batch; ++b) {
      for (int64_t n = 0; n < layer.steps; ++n) {
        const int64_t t = layer.time(d, n);
        Vector h = layer.state_before(y, h0, d, n, b);
        Vector c = layer.state_before(cells, c0, d, n, b);
        const Vector wx = multiply_rows(call.input(1), d, 0, rows,
                                        slice_of(x, layer.input_at(t, b), layer.inputs));
        const Vector rh = multiply_rows(call.input(2), d, 0, rows, h);
        const Vector input_bias = bias_part(bias, d, 0, 0, rows);
        const Vector recurrent_bias = bias_part(bias, d, 1, 0, rows);
        Vector gates(rows);
        for (int64_t r = 0; r < rows; ++r) {
          const double sum = wx[r] + rh[r] + input_bias[r] + recurrent_bias[r];
          gates[r] = r >= at.g && r < at.g + hidden ? std::tanh(sum) : logistic(sum);
        }
        for (int64_t j = 0; j < hidden; ++j) {
          c[j] = gates[at.f + j] * c[j] + gates[at.i + j] * gates[at.g + j];
          h[j] = gates[at.o + j] * std::tanh(c[j]);
        }
        put_slice(gates, layer.step_at(t, d, b, rows), all_gates);
        put_slice(c, layer.step_at(t, d, b, hidden), cells);
        put_slice(h, layer.step_at(t, d, b, hidden), y);
        put_slice(h, layer.state_at(d, b), h_n);
        put_slice(c, layer.state_at(d, b), c_n);
      }
    }
  }
  return {{y, h_n, c_n}, {all_gates, cells}};
}

std::vector<Array> lstm_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const RecurrentLayer layer(attrs, call.shape(0), kLstmGates);
  const LstmRows at = lstm_rows(attrs);
  const int64_t rows = layer.gate_rows(), hidden = layer.hidden;
  const Array& r_weight = call.input(2);
  const Array& all_gates = call.auxiliary(0);
  const Array& cells = call.auxiliary(1);
  const Array* c0 = call.signature().has_input(5) ? &call.input(5) : nullptr;
  Array dx = call.zeros_if_wanted(0), dw = call.zeros_if_wanted(1), dr = call.zeros_if_wanted(2);
  Array dbias = call.zeros_if_wanted(3), dh0 = call.zeros_if_wanted(4);
  Array dc0 = call.zeros_if_wanted(5);
  for (int64_t d = 0; d < layer.directions; ++d) {
    for (int64_t b = 0; b < layer.batch; ++b) {
      Vector dh_carry = final_gradient(call, layer, 1, d, b);
      Vector dc = final_gradient(call, layer, 2, d, b);
      for (int64_t n = layer.steps; n-- > 0;) {
        const int64_t t = layer.time(d, n);
        const Vector dh = arriving_gradient(call, layer, dh_carry, d, t, b);
        const Vector gates = slice_of(all_gates, layer.step_at(t, d, b, rows), rows);
        const Vector c = slice_of(cells, layer.step_at(t, d, b, hidden), hidden);
        const Vector c_before = layer.state_before(cells, c0, d, n, b);
        Vector pre(rows);  // gradient before the activations
        for (int64_t j = 0; j < hidden; ++j) {
          const double i = gates[at.i + j], f = gates[at.f + j], g = gates[at.g + j];
          const double o = gates[at.o + j], tanh_c = std::tanh(c[j]);
          dc[j] += dh[j] * o * (1 - tanh_c * tanh_c);
          pre[at.o + j] = dh[j] * tanh_c * o * (1 - o);
          pre[at.i + j] = dc[j] * g * i * (1 - i);
          pre[at.f + j] = dc[j] * c_before[j] * f * (1 - f);
          pre[at.g + j] = dc[j] * i * (1 - g * g);
          dc[j] *= f;
        }
        if (call.wants(0))
          add_operand_gradient(pre, call.input(1), d, 0, &dx.values[layer.input_at(t, b)]);
        if (call.wants(1)) {
          add_weight_gradient(pre, slice_of(call.input(0), layer.input_at(t, b), layer.inputs), d,
                              0, dw);
        }
        if (call.wants(2)) {
          const Array* h0 = call.signature().has_input(4) ? &call.input(4) : nullptr;
          add_weight_gradient(pre, layer.state_before(call.output(0), h0, d, n, b), d, 0, dr);
        }
        if (call.wants(3)) {
          add_bias_gradient(pre, d, 0, 0, dbias);
          add_bias_gradient(pre, d, 1, 0, dbias);
        }
        dh_carry.assign(hidden, 0);
        add_operand_gradient(pre, r_weight, d, 0, dh_carry.data());
      }
      if (call.wants(4)) put_slice(dh_carry, layer.state_at(d, b), dh0);
      if (call.wants(5)) put_slice(dc, layer.state_at(d, b), dc0);
    }
  }
  return {dx, dw, dr, dbias, dh0, dc0};
}

}  // namespace windlass::reference
