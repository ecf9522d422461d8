// Gated recurrent unit: z, r = logistic(W x + R h + b), h' = (1 - z) n + z h, with the candidate
// n = tanh(W x + b + r (R h + b)) if linear_before_reset, else tanh(W x + b + R (r h) + b).
//
// The saved gates hold z, r and n in the order of the weights, then the recurrent part of n before
// the reset gate: R h + b, or R (r h) + b.

#include <cmath>

#include "windlass/graph/reference/recurrent.h"

namespace windlass::reference {
namespace {

constexpr int64_t kGruGates = 3;

// Row of the first unit of each gate in W, R and the saved gates.
struct GruRows {
  int64_t z, r, n, recurrent;
};

GruRows gru_rows(const RecurrentAttrs& attrs) {
  const int64_t h = attrs.hidden;
  if (attrs.gates == GateOrder::Onnx) return {0, h, 2 * h, 3 * h};
  return {h, 0, 2 * h, 3 * h};
}

Vector times(const Vector& a, const Vector& b) {
  Vector result = a;
  for (size_t i = 0; i < b.size(); ++i) result[i] *= b[i];
  return result;
}

}  // namespace

ForwardResult gru_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const Array& x = call.input(0);
  const RecurrentLayer layer(attrs, x.shape, kGruGates);
  const GruRows at = gru_rows(attrs);
  const int64_t rows = layer.gate_rows(), hidden = layer.hidden, width = 4 * hidden;
  const Array* bias = call.has(3) ? &call.input(3) : nullptr;
  const Array* h0 = call.has(4) ? &call.input(4) : nullptr;
  Array y(layer.step_shape(hidden)), h_n(layer.state_shape());
  Array all_gates(layer.step_shape(width));
  for (int64_t d = 0; d < layer.directions; ++d) {
    for (int64_t b = 0; b < layer.batch; ++b) {
      for (int64_t step = 0; step < layer.steps; ++step) {
        const int64_t t = layer.time(d, step);
        Vector h = layer.state_before(y, h0, d, step, b);
        const Vector wx = multiply_rows(call.input(1), d, 0, rows,
                                        slice_of(x, layer.input_at(t, b), layer.inputs));
        const Vector rh = multiply_rows(call.input(2), d, 0, rows, h);
        const Vector input_bias = bias_part(bias, d, 0, 0, rows);
        const Vector recurrent_bias = bias_part(bias, d, 1, 0, rows);
        Vector gates(width);
        for (int64_t i = 0; i < 2 * hidden; ++i)  // z and r lie before n in either order
          gates[i] = logistic(wx[i] + rh[i] + input_bias[i] + recurrent_bias[i]);
        const Vector r = Vector(gates.begin() + at.r, gates.begin() + at.r + hidden);
        const Vector candidate = attrs.linear_before_reset
                                     ? Vector(rh.begin() + at.n, rh.begin() + at.n + hidden)
                                     : multiply_rows(call.input(2), d, at.n, hidden, times(r, h));
        for (int64_t j = 0; j < hidden; ++j) {
          const double recurrent = candidate[j] + recurrent_bias[at.n + j];
          const double z = gates[at.z + j];
          const double n = std::tanh(wx[at.n + j] + input_bias[at.n + j] +
                                     (attrs.linear_before_reset ? r[j] * recurrent : recurrent));
          gates[at.n + j] = n;
          gates[at.recurrent + j] = recurrent;
          h[j] = (1 - z) * n + z * h[j];
        }
        put_slice(gates, layer.step_at(t, d, b, width), all_gates);
        put_slice(h, layer.step_at(t, d, b, hidden), y);
        put_slice(h, layer.state_at(d, b), h_n);
      }
    }
  }
  return {{y, h_n}, {all_gates}};
}

std::vector<Array> gru_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const RecurrentLayer layer(attrs, call.shape(0), kGruGates);
  const GruRows at = gru_rows(attrs);
  const int64_t hidden = layer.hidden, width = 4 * hidden;
  const Array& r_weight = call.input(2);
  const Array& y = call.output(0);
  const Array& all_gates = call.auxiliary(0);
  const Array* h0 = call.signature().has_input(4) ? &call.input(4) : nullptr;
  Array dx = call.zeros_if_wanted(0), dw = call.zeros_if_wanted(1), dr = call.zeros_if_wanted(2);
  Array dbias = call.zeros_if_wanted(3), dh0 = call.zeros_if_wanted(4);
  for (int64_t d = 0; d < layer.directions; ++d) {
    for (int64_t b = 0; b < layer.batch; ++b) {
      Vector carry = final_gradient(call, layer, 1, d, b);
      for (int64_t step = layer.steps; step-- > 0;) {
        const int64_t t = layer.time(d, step);
        const Vector dh = arriving_gradient(call, layer, carry, d, t, b);
        const Vector gates = slice_of(all_gates, layer.step_at(t, d, b, width), width);
        const Vector h = layer.state_before(y, h0, d, step, b);
        const Vector r = Vector(gates.begin() + at.r, gates.begin() + at.r + hidden);
        carry.assign(hidden, 0);

        Vector n_pre(hidden);  // gradient of n before its tanh
        for (int64_t j = 0; j < hidden; ++j) {
          const double n = gates[at.n + j], z = gates[at.z + j];
          n_pre[j] = dh[j] * (1 - z) * (1 - n * n);
          carry[j] += dh[j] * z;
        }
        // Gradient of R's product for the candidate, and of the reset gate.
        const Vector n_recurrent = attrs.linear_before_reset ? times(n_pre, r) : n_pre;
        Vector r_gradient(hidden, 0), product_gradient(hidden, 0);
        add_operand_gradient(n_recurrent, r_weight, d, at.n, product_gradient.data());
        for (int64_t j = 0; j < hidden; ++j) {
          r_gradient[j] = attrs.linear_before_reset ? n_pre[j] * gates[at.recurrent + j]
                                                    : product_gradient[j] * h[j];
          carry[j] += attrs.linear_before_reset ? product_gradient[j] : product_gradient[j] * r[j];
        }
        if (call.wants(2)) {
          add_weight_gradient(n_recurrent, attrs.linear_before_reset ? h : times(r, h), d, at.n,
                              dr);
        }

        Vector zr_pre(2 * hidden);  // of z and r before their logistic, in the order of the weights
        for (int64_t j = 0; j < hidden; ++j) {
          const double z = gates[at.z + j];
          zr_pre[at.z + j] = dh[j] * (h[j] - gates[at.n + j]) * z * (1 - z);
          zr_pre[at.r + j] = r_gradient[j] * r[j] * (1 - r[j]);
        }
        add_operand_gradient(zr_pre, r_weight, d, 0, carry.data());
        if (call.wants(2)) add_weight_gradient(zr_pre, h, d, 0, dr);

        Vector pre = zr_pre;
        pre.insert(pre.end(), n_pre.begin(), n_pre.end());
        if (call.wants(0))
          add_operand_gradient(pre, call.input(1), d, 0, &dx.values[layer.input_at(t, b)]);
        if (call.wants(1)) {
          add_weight_gradient(pre, slice_of(call.input(0), layer.input_at(t, b), layer.inputs), d,
                              0, dw);
        }
        if (call.wants(3)) {
          add_bias_gradient(pre, d, 0, 0, dbias);
          add_bias_gradient(zr_pre, d, 1, 0, dbias);
          add_bias_gradient(n_recurrent, d, 1, at.n, dbias);
        }
      }
      if (call.wants(4)) put_slice(carry, layer.state_at(d, b), dh0);
    }
  }
  return {dx, dw, dr, dbias, dh0};
}

}  // namespace windlass::reference
