// How the weights and buffers of a graph begin when no file has their values.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "windlass/graph/graph.h"

namespace windlass {

// The distribution of a tensor's first values: all `a`; uniform in [a, b); normal with mean `a` and
// standard deviation `b`.
struct InitialValue {
  enum class Kind : uint8_t { Constant, Uniform, Normal };
  Kind kind = Kind::Constant;
  double a = 0;
  double b = 0;
  bool operator==(const InitialValue&) const = default;
};

// The first values of every weight and buffer, as PyTorch's modules have them. What a tensor is
// follows from the first op that uses it, looked for through reshapes, transposes, slices, splits,
// casts and copies:
//
//  - matrix of a linear layer or product, kernel of a convolution: uniform within +-1/sqrt(fan in)
//    (kaiming_uniform_ with a = sqrt(5)); a bias added to their result the same. The fan in of a
//    transposed convolution is that of torch.nn.init: second axis times kernel;
//  - weights and biases of LSTM and GRU: uniform within +-1/sqrt(hidden);
//  - norms: scale 1 (less what the op adds to it), shift 0, running mean 0, running variance 1;
//  - table of rows looked up by data: N(0, 1); by constants, or added as it is: positions and class
//    tokens, N(0, 0.02);
//  - else, if it multiplies: 1; vectors: 0; other weights N(0, 0.02); other buffers: 0.
//
// Transformer language models begin as GPT-2, BERT and Llama do: matrices and tables N(0, 0.02),
// biases 0. A graph is one if it looks up rows by a model input and has attention (an Attention op,
// or a softmax and a product of two tensors that both depend on data) but nothing recurrent.
// GPT-2's division of the matrices before residual sums by the root of their number is left out.
//
// Of a training graph only the forward pass counts.
std::map<TensorId, InitialValue> initial_values(const Graph& graph);

// Elements [first, first + out.size()) of tensor `id`. Each is a function of seed, id and its place
// alone, so that parts may be filled in any order, by any thread, on any device.
void fill_initial(const InitialValue& value, uint64_t seed, TensorId id, std::span<float> out,
                  int64_t first = 0);

}  // namespace windlass
