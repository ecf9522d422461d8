// What the kernels of LSTM and GRU share: sizes, the order of time, and the products over all
// steps.
//
// A direction of a layer is computed on its own, on [s, b, width] views of [s, D, b, width]
// tensors: step t of such a view is a dense matrix. 16-bit operands are widened as a whole, results
// rounded at the end.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

struct RecurrentLayer {
  int64_t steps, batch, hidden, directions;
  bool reverse;  // of the only direction

  RecurrentLayer(const RecurrentAttrs& attrs, at::IntArrayRef x)
      : steps(x[0]),
        batch(x[1]),
        hidden(attrs.hidden),
        directions(attrs.bidirectional ? 2 : 1),
        reverse(attrs.reverse && !attrs.bidirectional) {}

  // Whether direction d runs from the last step to the first.
  bool backwards(int64_t d) const { return d == 1 || reverse; }
  // Time of the n-th step of direction d.
  int64_t time(int64_t d, int64_t n) const { return backwards(d) ? steps - 1 - n : n; }

  // Part d of a state [D, b, h]; zeros if there is none.
  at::Tensor state(const at::Tensor& states, int64_t d, at::ScalarType type) const;
};

// A result of the forward pass in the type that the kernel computes in: the fresh tensor itself or,
// for 16 bits, an fp32 tensor that `finish` rounds. Workspace if the result is not wanted.
class WideResult {
 public:
  WideResult(Result* result, const Shape& shape, at::ScalarType type);

  const at::Tensor& tensor() const { return tensor_; }
  void finish();

 private:
  Result* result_;  // null if `tensor_` is its tensor, or nobody wants it
  at::Tensor tensor_;
};

// Pre-activations of all steps of a direction at once: out[s, b, rows] = x[s, b, i] W^T + bias.
// `bias` may be undefined, `out` may be a view.
void multiply_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& out);

// The states [s, b, h] before each step of direction d, from those after each step and the initial
// one.
at::Tensor states_before(const RecurrentLayer& layer, const at::Tensor& after,
                         const at::Tensor& initial, int64_t d);

// Gradients of a recurrent layer in the type that the kernel computes in: sums to add to, undefined
// where they are not wanted.
class RecurrentGradients {
 public:
  RecurrentGradients(BackwardCall& call, at::ScalarType type);

  bool wants(size_t input) const { return input < sums_.size() && sums_[input].defined(); }
  const at::Tensor& operator[](size_t input) const { return sums_[input]; }
  void finish();

 private:
  BackwardCall& call_;
  std::vector<at::Tensor> sums_;
};

// Adds what the gradients `g` [s b, n] of the rows [begin, begin + n) of W x in direction d mean
// for the input and for W, as far as those are wanted; `x` is [s b, i].
void add_input_gradients(const RecurrentGradients& gradients, const at::Tensor& g,
                         const at::Tensor& x, const at::Tensor& weight, int64_t d, int64_t begin);

// Gradient of final state `output` of direction d, fresh; zeros if none arrives.
at::Tensor final_gradient(const BackwardCall& call, const RecurrentLayer& layer, size_t output,
                          int64_t d, at::ScalarType type);

}  // namespace windlass
