// Ops written once more with ordinary differentiable torch calls, for the tests that compare
// backward kernels with autograd.
//
// To cover a kind: write one small function from inputs to outputs and enter it in the table of a
// kernel_autograd*_test.cpp, whose tests call expect_agrees_with_autograd.
#pragma once

#include <vector>

#include "windlass/runtime/kernels/kernel_cases.h"

namespace windlass {

// Inputs of a forward op, in fp32 where the op has floats; undefined where absent.
struct PeerCall {
  const Attrs& attributes;
  const Tensors& inputs;
  RandomKey random;

  template <typename T>
  const T& attrs() const {
    return std::get<T>(attributes);
  }
  const at::Tensor& input(size_t i) const { return inputs[i]; }
  bool has(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
};

// The outputs of the op. An output left undefined, or trailing ones left out, are not compared.
using PeerFunction = Tensors (*)(const PeerCall&);

struct AutogradPeer {
  OpKind kind;
  PeerFunction run;
};

// Runs forward and backward kernel of every case of the kind in `dtype`, and the peer in fp32 on
// the same (rounded) values; compares outputs and gradients with the tolerance of expect_close.
// Running statistics and other inputs that the op overwrites are copies on both sides.
void expect_agrees_with_autograd(const AutogradPeer& peer, DType dtype);

}  // namespace windlass
