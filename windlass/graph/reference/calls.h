// What the dispatch table hands to the function of an op kind, and the functions it knows.
//
// A backward function sees the forward op only through the saved tensors, the output gradients and
// the types in the signature: asking for a tensor that the gradient rule did not save is an error.
// So the reference also checks that what the rules save is enough.
#pragma once

#include <cstddef>
#include <vector>

#include "windlass/graph/reference/array.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass::reference {

struct ForwardCall {
  const Signature& signature;
  const std::vector<const Array*>& inputs;
  RandomState random;
  const PieceFacts& facts;
  const Array* statistics = nullptr;  // merged, of a coupled op whose pieces exchange some

  template <typename T>
  const T& attrs() const {
    return signature.as<T>();
  }
  bool has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
  // Throws Error{Internal} if it is absent.
  const Array& input(size_t i) const;
  DType dtype(size_t i) const { return signature.input(i).dtype; }
};

class BackwardCall {
 public:
  BackwardCall(const Signature& signature, const GradientRule& rule,
               const std::vector<bool>& wanted, const std::vector<const Array*>& gradients,
               const std::vector<const Array*>& saved, RandomState random, const PieceFacts& facts,
               const Array* statistics = nullptr);

  template <typename T>
  const T& attrs() const {
    return signature_.as<T>();
  }
  const Signature& signature() const { return signature_; }
  const Shape& shape(size_t i) const { return signature_.shape(i); }
  RandomState random() const { return random_; }
  const PieceFacts& facts() const { return facts_; }
  const Array* statistics() const { return statistics_; }

  // Whether the gradient of input i is to be computed.
  bool wants(size_t i) const;

  // Gradient of forward output i; null if nobody needs that output.
  const Array* gradient_or_null(size_t i) const;
  const Array& gradient(size_t i = 0) const;

  // Saved tensors. Throw Error{Internal} naming what the rule did not save.
  const Array& input(size_t i) const { return saved(SavedRef::Source::Input, i); }
  const Array& output(size_t i) const { return saved(SavedRef::Source::Output, i); }
  const Array& auxiliary(size_t i) const { return saved(SavedRef::Source::Auxiliary, i); }

  // Zeros in the shape of input i if its gradient is wanted, else nothing.
  Array zeros_if_wanted(size_t i) const { return wants(i) ? Array(shape(i)) : Array(); }

 private:
  const Array& saved(SavedRef::Source source, size_t index) const;

  const Signature& signature_;
  const GradientRule& rule_;
  const std::vector<bool>& wanted_;
  const std::vector<const Array*>& gradients_;
  const std::vector<const Array*>& saved_;
  RandomState random_;
  const PieceFacts& facts_;
  const Array* statistics_;
};

// A forward function returns outputs and auxiliaries; a backward function the gradients of the
// inputs in order, where trailing ones may be missing and those not wanted are Array().
using ForwardFunction = ForwardResult (*)(const ForwardCall&);
using BackwardFunction = std::vector<Array> (*)(const BackwardCall&);
// Statistics of coupled ops. Forward and backward functions make their own where they are given
// none: then the op is whole.
using BeginFunction = Array (*)(const ForwardCall&);
using BeginBackwardFunction = Array (*)(const BackwardCall&);

// contraction.cpp
ForwardResult matmul_forward(const ForwardCall& call);
std::vector<Array> matmul_backward(const BackwardCall& call);
ForwardResult linear_forward(const ForwardCall& call);
std::vector<Array> linear_backward(const BackwardCall& call);
ForwardResult grouped_linear_forward(const ForwardCall& call);
std::vector<Array> grouped_linear_backward(const BackwardCall& call);

// convolution.cpp
ForwardResult conv_forward(const ForwardCall& call);
std::vector<Array> conv_backward(const BackwardCall& call);

// pooling.cpp
ForwardResult pool_forward(const ForwardCall& call);
std::vector<Array> pool_backward(const BackwardCall& call);
ForwardResult resize_forward(const ForwardCall& call);
std::vector<Array> resize_backward(const BackwardCall& call);

// normalization.cpp
Array batch_norm_begin(const ForwardCall& call);
Array batch_norm_begin_backward(const BackwardCall& call);
std::vector<Array> batch_norm_writes(const ForwardCall& call, const ForwardResult& result);
ForwardResult batch_norm_forward(const ForwardCall& call);
std::vector<Array> batch_norm_backward(const BackwardCall& call);
Array layer_norm_begin(const ForwardCall& call);
Array layer_norm_begin_backward(const BackwardCall& call);
ForwardResult layer_norm_forward(const ForwardCall& call);
std::vector<Array> layer_norm_backward(const BackwardCall& call);
Array rms_norm_begin(const ForwardCall& call);
Array rms_norm_begin_backward(const BackwardCall& call);
ForwardResult rms_norm_forward(const ForwardCall& call);
std::vector<Array> rms_norm_backward(const BackwardCall& call);
Array group_norm_begin(const ForwardCall& call);
Array group_norm_begin_backward(const BackwardCall& call);
ForwardResult group_norm_forward(const ForwardCall& call);
std::vector<Array> group_norm_backward(const BackwardCall& call);

// local_response_norm.cpp
ForwardResult local_response_norm_forward(const ForwardCall& call);
std::vector<Array> local_response_norm_backward(const BackwardCall& call);

// softmax.cpp
Array softmax_begin(const ForwardCall& call);
Array softmax_begin_backward(const BackwardCall& call);
ForwardResult softmax_forward(const ForwardCall& call);
std::vector<Array> softmax_backward(const BackwardCall& call);

// attention.cpp
Array attention_begin(const ForwardCall& call);
Array attention_begin_backward(const BackwardCall& call);
ForwardResult attention_forward(const ForwardCall& call);
std::vector<Array> attention_backward(const BackwardCall& call);
ForwardResult rotary_forward(const ForwardCall& call);
std::vector<Array> rotary_backward(const BackwardCall& call);

// unary.cpp
ForwardResult unary_forward(const ForwardCall& call);
std::vector<Array> unary_backward(const BackwardCall& call);
ForwardResult cast_forward(const ForwardCall& call);
std::vector<Array> cast_backward(const BackwardCall& call);

// elementwise.cpp
ForwardResult binary_forward(const ForwardCall& call);
std::vector<Array> binary_backward(const BackwardCall& call);
ForwardResult where_forward(const ForwardCall& call);
std::vector<Array> where_backward(const BackwardCall& call);
ForwardResult dropout_forward(const ForwardCall& call);
std::vector<Array> dropout_backward(const BackwardCall& call);
ForwardResult random_forward(const ForwardCall& call);
ForwardResult accumulate_forward(const ForwardCall& call);

// lookup.cpp
ForwardResult embedding_forward(const ForwardCall& call);
std::vector<Array> embedding_backward(const BackwardCall& call);
ForwardResult gather_forward(const ForwardCall& call);
std::vector<Array> gather_backward(const BackwardCall& call);
ForwardResult gather_elements_forward(const ForwardCall& call);
std::vector<Array> gather_elements_backward(const BackwardCall& call);
ForwardResult scatter_elements_forward(const ForwardCall& call);
std::vector<Array> scatter_elements_backward(const BackwardCall& call);

// layout.cpp
ForwardResult reshape_forward(const ForwardCall& call);
std::vector<Array> reshape_backward(const BackwardCall& call);
ForwardResult transpose_forward(const ForwardCall& call);
std::vector<Array> transpose_backward(const BackwardCall& call);
ForwardResult slice_forward(const ForwardCall& call);
std::vector<Array> slice_backward(const BackwardCall& call);
ForwardResult concat_forward(const ForwardCall& call);
std::vector<Array> concat_backward(const BackwardCall& call);
ForwardResult split_forward(const ForwardCall& call);
std::vector<Array> split_backward(const BackwardCall& call);
ForwardResult pad_forward(const ForwardCall& call);
std::vector<Array> pad_backward(const BackwardCall& call);
ForwardResult expand_forward(const ForwardCall& call);
std::vector<Array> expand_backward(const BackwardCall& call);

// reduction.cpp
Array reduce_begin_backward(const BackwardCall& call);
ForwardResult reduce_forward(const ForwardCall& call);
std::vector<Array> reduce_backward(const BackwardCall& call);
ForwardResult cumsum_forward(const ForwardCall& call);
std::vector<Array> cumsum_backward(const BackwardCall& call);
ForwardResult argmax_forward(const ForwardCall& call);
ForwardResult top_k_forward(const ForwardCall& call);
std::vector<Array> top_k_backward(const BackwardCall& call);

// recurrent.cpp
ForwardResult lstm_forward(const ForwardCall& call);
std::vector<Array> lstm_backward(const BackwardCall& call);
ForwardResult gru_forward(const ForwardCall& call);
std::vector<Array> gru_backward(const BackwardCall& call);

// routing.cpp
ForwardResult route_forward(const ForwardCall& call);
std::vector<Array> route_backward(const BackwardCall& call);
ForwardResult combine_forward(const ForwardCall& call);
std::vector<Array> combine_backward(const BackwardCall& call);

// slots.cpp
ForwardResult dispatch_forward(const ForwardCall& call);
std::vector<Array> dispatch_backward(const BackwardCall& call);
ForwardResult collect_forward(const ForwardCall& call);
std::vector<Array> collect_backward(const BackwardCall& call);
ForwardResult slot_linear_forward(const ForwardCall& call);
std::vector<Array> slot_linear_backward(const BackwardCall& call);

// loss.cpp
Array cross_entropy_begin(const ForwardCall& call);
ForwardResult cross_entropy_forward(const ForwardCall& call);
std::vector<Array> cross_entropy_backward(const BackwardCall& call);
ForwardResult mean_squared_error_forward(const ForwardCall& call);
std::vector<Array> mean_squared_error_backward(const BackwardCall& call);

}  // namespace windlass::reference
