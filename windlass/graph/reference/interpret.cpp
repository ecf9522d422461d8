#include "windlass/graph/reference/interpret.h"

#include <array>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass {
namespace reference {
namespace {

struct Functions {
  ForwardFunction forward = nullptr;
  BackwardFunction backward = nullptr;  // null if the op has no gradient
  BeginFunction begin = nullptr;        // null if nothing is exchanged
  BeginBackwardFunction begin_backward = nullptr;
};

Functions functions_of(OpKind kind) {
  switch (kind) {
    case OpKind::MatMul: return {matmul_forward, matmul_backward};
    case OpKind::Linear: return {linear_forward, linear_backward};
    case OpKind::GroupedLinear: return {grouped_linear_forward, grouped_linear_backward};
    case OpKind::SlotLinear: return {slot_linear_forward, slot_linear_backward};
    case OpKind::Conv: return {conv_forward, conv_backward};
    case OpKind::Pool: return {pool_forward, pool_backward};
    case OpKind::Resize: return {resize_forward, resize_backward};
    case OpKind::BatchNorm:
      return {batch_norm_forward, batch_norm_backward, batch_norm_begin, batch_norm_begin_backward};
    case OpKind::LayerNorm:
      return {layer_norm_forward, layer_norm_backward, layer_norm_begin, layer_norm_begin_backward};
    case OpKind::RmsNorm:
      return {rms_norm_forward, rms_norm_backward, rms_norm_begin, rms_norm_begin_backward};
    case OpKind::GroupNorm:
      return {group_norm_forward, group_norm_backward, group_norm_begin, group_norm_begin_backward};
    case OpKind::LocalResponseNorm:
      return {local_response_norm_forward, local_response_norm_backward};
    case OpKind::Softmax:
      return {softmax_forward, softmax_backward, softmax_begin, softmax_begin_backward};
    case OpKind::Attention:
      return {attention_forward, attention_backward, attention_begin, attention_begin_backward};
    case OpKind::Rotary: return {rotary_forward, rotary_backward};
    case OpKind::Unary: return {unary_forward, unary_backward};
    case OpKind::Binary: return {binary_forward, binary_backward};
    case OpKind::Where: return {where_forward, where_backward};
    case OpKind::Cast: return {cast_forward, cast_backward};
    case OpKind::Dropout: return {dropout_forward, dropout_backward};
    case OpKind::Random: return {random_forward};
    case OpKind::Embedding: return {embedding_forward, embedding_backward};
    case OpKind::Gather: return {gather_forward, gather_backward};
    case OpKind::GatherElements: return {gather_elements_forward, gather_elements_backward};
    case OpKind::ScatterElements: return {scatter_elements_forward, scatter_elements_backward};
    case OpKind::Reshape: return {reshape_forward, reshape_backward};
    case OpKind::Transpose: return {transpose_forward, transpose_backward};
    case OpKind::Slice: return {slice_forward, slice_backward};
    case OpKind::Concat: return {concat_forward, concat_backward};
    case OpKind::Split: return {split_forward, split_backward};
    case OpKind::Pad: return {pad_forward, pad_backward};
    case OpKind::Expand: return {expand_forward, expand_backward};
    case OpKind::Reduce: return {reduce_forward, reduce_backward, nullptr, reduce_begin_backward};
    case OpKind::CumSum: return {cumsum_forward, cumsum_backward};
    case OpKind::ArgMax: return {argmax_forward};
    case OpKind::TopK: return {top_k_forward, top_k_backward};
    case OpKind::Lstm: return {lstm_forward, lstm_backward};
    case OpKind::Gru: return {gru_forward, gru_backward};
    case OpKind::Route: return {route_forward, route_backward};
    case OpKind::Combine: return {combine_forward, combine_backward};
    case OpKind::Dispatch: return {dispatch_forward, dispatch_backward};
    case OpKind::Collect: return {collect_forward, collect_backward};
    case OpKind::CrossEntropy:
      return {cross_entropy_forward, cross_entropy_backward, cross_entropy_begin};
    case OpKind::MeanSquaredError: return {mean_squared_error_forward, mean_squared_error_backward};
    case OpKind::Accumulate: return {accumulate_forward};
    case OpKind::Update: return {};  // reference_update
  }
  return {};
}

// The interpreter finds its shapes itself; where the op table has said what they are, both must
// agree.
void check_shapes(const std::vector<Array>& found, const std::vector<TensorType>& expected,
                  std::string_view what) {
  if (expected.empty()) return;
  ensure(found.size() == expected.size(), "number of results differs from the op table");
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].shape != expected[i].shape) {
      fail(ErrorKind::Internal, "internal error: {} {} has shape {}, the op table says {}", what, i,
           format_shape(found[i].shape), format_shape(expected[i].shape));
    }
  }
}

// Exactly the gradients that are wanted and computed are there, each in the shape of its input.
void check_gradients(const std::vector<Array>& found, const Signature& signature,
                     const GradientRule& rule, const std::vector<bool>& wanted) {
  for (size_t i = 0; i < found.size(); ++i) {
    const bool expected = wanted[i] && rule.inputs[i] == GradientSource::Computed;
    const Shape shape = expected ? signature.shape(i) : Shape{};
    const size_t count = expected ? static_cast<size_t>(element_count(shape)) : 0;
    if (found[i].shape != shape || found[i].values.size() != count) {
      fail(ErrorKind::Internal, "internal error: gradient of input {} has shape {} and {} elements",
           i, format_shape(found[i].shape), found[i].values.size());
    }
  }
}

// The message of an error inside an op begins with the op's kind.
template <class Run>
auto run_named(OpKind kind, Run&& run) {
  try {
    return run();
  } catch (const Error& error) {
    throw error.within(op_info(kind).name);
  }
}

}  // namespace

const Array& ForwardCall::input(size_t i) const {
  if (!has(i)) fail(ErrorKind::Internal, "internal error: input {} is absent", i);
  return *inputs[i];
}

BackwardCall::BackwardCall(const Signature& signature, const GradientRule& rule,
                           const std::vector<bool>& wanted,
                           const std::vector<const Array*>& gradients,
                           const std::vector<const Array*>& saved, RandomState random,
                           const PieceFacts& facts, const Array* statistics)
    : signature_(signature),
      rule_(rule),
      wanted_(wanted),
      gradients_(gradients),
      saved_(saved),
      random_(random),
      facts_(facts),
      statistics_(statistics) {
  ensure(rule.saved.size() == saved.size(), "saved tensors do not match the gradient rule");
}

bool BackwardCall::wants(size_t i) const {
  return i < wanted_.size() && wanted_[i] && i < rule_.inputs.size() &&
         rule_.inputs[i] == GradientSource::Computed;
}

const Array* BackwardCall::gradient_or_null(size_t i) const {
  return i < gradients_.size() ? gradients_[i] : nullptr;
}

const Array& BackwardCall::gradient(size_t i) const {
  const Array* result = gradient_or_null(i);
  if (result == nullptr)
    fail(ErrorKind::Internal, "internal error: gradient of output {} is absent", i);
  return *result;
}

const Array& BackwardCall::saved(SavedRef::Source source, size_t index) const {
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (rule_.saved[i] == SavedRef{source, static_cast<int32_t>(index)} && saved_[i] != nullptr)
      return *saved_[i];
  }
  constexpr std::array<std::string_view, 3> kSources = {"input", "output", "auxiliary"};
  fail(ErrorKind::Internal, "internal error: the gradient needs {} {}, which was not saved",
       kSources[static_cast<size_t>(source)], index);
}

}  // namespace reference

ForwardResult interpret_forward(const Signature& signature, const std::vector<const Array*>& inputs,
                                RandomState random, const PieceFacts& facts,
                                const Array* statistics) {
  return reference::run_named(signature.kind, [&] {
    const reference::ForwardFunction forward = reference::functions_of(signature.kind).forward;
    ensure(forward != nullptr, "this op cannot be interpreted");
    ForwardResult result = forward({signature, inputs, random, facts, statistics});
    reference::check_shapes(result.outputs, signature.outputs, "output");
    reference::check_shapes(result.auxiliaries, signature.auxiliaries, "auxiliary");
    return result;
  });
}

std::vector<Array> interpret_backward(const Signature& signature, const GradientRule& rule,
                                      const std::vector<bool>& wanted,
                                      const std::vector<const Array*>& output_gradients,
                                      const std::vector<const Array*>& saved, RandomState random,
                                      const PieceFacts& facts, const Array* statistics) {
  return reference::run_named(signature.kind, [&] {
    const reference::BackwardFunction backward = reference::functions_of(signature.kind).backward;
    ensure(backward != nullptr, "this op has no gradient");
    std::vector<Array> result =
        backward({signature, rule, wanted, output_gradients, saved, random, facts, statistics});
    result.resize(signature.inputs.size());
    reference::check_gradients(result, signature, rule, wanted);
    return result;
  });
}

Array interpret_statistics(const Signature& signature, const std::vector<const Array*>& inputs,
                           RandomState random, const PieceFacts& facts) {
  return reference::run_named(signature.kind, [&] {
    const reference::BeginFunction begin = reference::functions_of(signature.kind).begin;
    ensure(begin != nullptr, "this op exchanges nothing forward");
    return begin({signature, inputs, random, facts});
  });
}

Array interpret_gradient_statistics(const Signature& signature, const GradientRule& rule,
                                    const std::vector<bool>& wanted,
                                    const std::vector<const Array*>& output_gradients,
                                    const std::vector<const Array*>& saved, RandomState random,
                                    const PieceFacts& facts) {
  return reference::run_named(signature.kind, [&] {
    const auto begin = reference::functions_of(signature.kind).begin_backward;
    ensure(begin != nullptr, "this op exchanges nothing backward");
    return begin({signature, rule, wanted, output_gradients, saved, random, facts});
  });
}

Array merge_statistics(const Exchange& exchange, const std::vector<Array>& members) {
  std::vector<const double*> values;
  for (const Array& member : members) {
    ensure(member.shape == exchange.type.shape, "statistics differ in shape");
    values.push_back(member.values.data());
  }
  Array result(exchange.type.shape);
  merge_statistics(exchange, values, result.values.data());
  return result;
}

std::vector<Array> interpret_writes(const Signature& signature,
                                    const std::vector<const Array*>& inputs,
                                    const ForwardResult& result, const PieceFacts& facts) {
  if (signature.kind != OpKind::BatchNorm) return {};
  return reference::batch_norm_writes({signature, inputs, {}, facts}, result);
}

bool can_fold(OpKind kind) {
  switch (kind) {
    case OpKind::MatMul:
    case OpKind::Unary:
    case OpKind::Binary:
    case OpKind::Where:
    case OpKind::Cast:
    case OpKind::Gather:
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Concat:
    case OpKind::Split:
    case OpKind::Pad:
    case OpKind::Expand:
    case OpKind::Reduce:
    case OpKind::CumSum:
    case OpKind::ArgMax:
    case OpKind::TopK:
    case OpKind::GatherElements:
    case OpKind::ScatterElements: return true;
    default: return false;
  }
}

}  // namespace windlass
