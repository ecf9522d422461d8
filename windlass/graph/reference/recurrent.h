// What LSTM and GRU share: sizes, the order of time, and the two matrix products of a cell.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/reference/calls.h"

namespace windlass::reference {

using Vector = std::vector<double>;

double logistic(double x);

// Sizes of a recurrent layer and offsets into its tensors.
struct RecurrentLayer {
  int64_t steps, batch, inputs, hidden, directions, gates;
  bool reverse;  // of the only direction

  RecurrentLayer(const RecurrentAttrs& attrs, const Shape& x, int64_t gate_count);

  // Whether direction d runs from the last step to the first.
  bool backwards(int64_t d) const { return d == 1 || reverse; }
  // Time of the n-th step of direction d.
  int64_t time(int64_t d, int64_t n) const { return backwards(d) ? steps - 1 - n : n; }

  // First element of batch row b: in x, in [s, D, b, width] and in [D, b, hidden].
  int64_t input_at(int64_t t, int64_t b) const { return (t * batch + b) * inputs; }
  int64_t step_at(int64_t t, int64_t d, int64_t b, int64_t width) const {
    return ((t * directions + d) * batch + b) * width;
  }
  int64_t state_at(int64_t d, int64_t b) const { return (d * batch + b) * hidden; }
  int64_t gate_rows() const { return gates * hidden; }

  Shape step_shape(int64_t width) const { return {steps, directions, batch, width}; }
  Shape state_shape() const { return {directions, batch, hidden}; }

  // Row b of the state before step n of direction d: of `history` [s, D, b, hidden] at the step
  // before, or of `initial` (zeros if null) at the first.
  Vector state_before(const Array& history, const Array* initial, int64_t d, int64_t n,
                      int64_t b) const;
};

Vector slice_of(const Array& array, int64_t start, int64_t size);
void put_slice(const Vector& values, int64_t start, Array& array);

// Forward products of the rows [row, row + count) of direction d.
Vector multiply_rows(const Array& weight, int64_t d, int64_t row, int64_t count, const Vector& x);
// Part of the bias of direction d: the input part (0) or the recurrent part (1); zeros if null.
Vector bias_part(const Array* bias, int64_t d, int64_t part, int64_t row, int64_t count);

// Backward of multiply_rows and bias_part: each adds its share of a gradient.
void add_weight_gradient(const Vector& gradient, const Vector& x, int64_t d, int64_t row,
                         Array& weight_gradient);
void add_operand_gradient(const Vector& gradient, const Array& weight, int64_t d, int64_t row,
                          double* x_gradient);
void add_bias_gradient(const Vector& gradient, int64_t d, int64_t part, int64_t row,
                       Array& bias_gradient);

// Gradient of the hidden state of batch row b after the step at time t: what later steps left in
// `carry` plus what arrives from output 0.
Vector arriving_gradient(const BackwardCall& call, const RecurrentLayer& layer, const Vector& carry,
                         int64_t d, int64_t t, int64_t b);

// Gradient of the final state (output `index`) for row b of direction d, zeros if absent.
Vector final_gradient(const BackwardCall& call, const RecurrentLayer& layer, size_t index,
                      int64_t d, int64_t b);

}  // namespace windlass::reference
