#include "windlass/runtime/kernels/kernel.h"

#include <array>
#include <string_view>

#include <ATen/ops/empty.h>

#include "windlass/base/error.h"
#include "windlass/runtime/instructions.h"
#include "windlass/runtime/kernels/errors.h"

namespace windlass {
namespace {

// Before any kernel of this file can be called.
[[maybe_unused]] const bool kWithoutTiles = (avoid_tiles(), true);

struct Kernels {
  ForwardKernel forward = nullptr;
  BackwardKernel backward = nullptr;  // null if the op has no gradient
  // Null if pieces exchange nothing.
  ForwardBegin begin = nullptr;
  BackwardBegin begin_backward = nullptr;
};

Kernels kernels_of(OpKind kind) {
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
    case OpKind::Update: return {};  // update_kernels.h
  }
  return {};
}

void check_results(std::span<const Result> results, std::string_view what) {
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    if (!result.wanted()) continue;
    const at::Tensor& tensor = result.tensor();
    if (!tensor.defined())
      fail(ErrorKind::Internal, "internal error: {} {} was not computed", what, i);
    const bool fits = tensor.sizes() == at::IntArrayRef(result.type().shape) &&
                      tensor.scalar_type() == scalar_type(result.type().dtype);
    if (!fits)
      fail(ErrorKind::Internal, "internal error: {} {} is {} of shape {}, the op table says {}",
           what, i, c10::toString(tensor.scalar_type()),
           format_shape(Shape(tensor.sizes().begin(), tensor.sizes().end())),
           format_type(result.type()));
  }
}

// The message of an error inside an op begins with the op's kind.
template <class Run>
void run_named(OpKind kind, Run&& run) {
  try {
    run();
  } catch (...) {
    rethrow_within(op_info(kind).name);
  }
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::None: break;
    case DType::F64: return at::kDouble;
    case DType::F32: return at::kFloat;
    case DType::BF16: return at::kBFloat16;
    case DType::F16: return at::kHalf;
    case DType::I64: return at::kLong;
    case DType::I32: return at::kInt;
    case DType::I16: return at::kShort;
    case DType::I8: return at::kChar;
    case DType::U8: return at::kByte;
    case DType::Bool: return at::kBool;
  }
  ensure(false, "no element type");
  return at::kFloat;
}

at::Tensor& Result::allocate() {
  ensure(wanted() && !adds_, "a result is allocated that is not wanted, or a sum");
  tensor_ = at::empty(type_.shape, scalar_type(type_.dtype));
  return tensor_;
}

void Result::set(at::Tensor value) {
  ensure(wanted(), "a result is set that is not wanted");
  if (adds_) {
    tensor_.add_(value);
    return;
  }
  const at::ScalarType type = scalar_type(type_.dtype);
  const bool owned =
      value.scalar_type() == type && value.is_contiguous() && value.storage_offset() == 0 &&
      value.use_count() == 1 && value.storage().use_count() == 1 &&
      value.storage().nbytes() == static_cast<size_t>(value.numel()) * value.element_size();
  if (owned) {
    tensor_ = std::move(value);
    return;
  }
  tensor_ = at::empty(value.sizes(), type);
  tensor_.copy_(value);
}

const at::Tensor& ForwardCall::input(size_t i) const {
  if (!has(i)) fail(ErrorKind::Internal, "internal error: input {} is absent", i);
  return inputs[i];
}

const at::Tensor& BackwardCall::gradient(size_t i) const {
  if (!has_gradient(i))
    fail(ErrorKind::Internal, "internal error: gradient of output {} is absent", i);
  return gradients[i];
}

const at::Tensor* BackwardCall::look_up(SavedRef::Source source, size_t index) const {
  for (size_t i = 0; i < saved_refs.size(); ++i)
    if (saved_refs[i] == SavedRef{source, static_cast<int32_t>(index)} && saved[i].defined())
      return &saved[i];
  return nullptr;
}

const at::Tensor& BackwardCall::find(SavedRef::Source source, size_t index) const {
  if (const at::Tensor* found = look_up(source, index)) return *found;
  constexpr std::array<std::string_view, 3> kSources = {"input", "output", "auxiliary"};
  fail(ErrorKind::Internal, "internal error: the gradient needs {} {}, which was not saved",
       kSources[static_cast<size_t>(source)], index);
}

void run_forward(ForwardCall& call) {
  run_named(call.kind, [&] {
    const ForwardKernel kernel = kernels_of(call.kind).forward;
    ensure(kernel != nullptr, "no kernel");
    kernel(call);
    if (call.known_result >= 0) call.outputs[0].fill(call.known_result);
    check_results(call.outputs, "output");
    check_results(call.auxiliaries, "auxiliary");
  });
}

void run_backward(BackwardCall& call) {
  run_named(call.kind, [&] {
    const BackwardKernel kernel = kernels_of(call.kind).backward;
    ensure(kernel != nullptr, "no backward kernel");
    kernel(call);
    check_results(call.results, "gradient");
  });
}

void begin_forward(const ForwardCall& call, at::Tensor& statistics) {
  run_named(call.kind, [&] {
    const ForwardBegin kernel = kernels_of(call.kind).begin;
    ensure(kernel != nullptr, "the op exchanges nothing forward");
    kernel(call, statistics);
  });
}

void begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  run_named(call.kind, [&] {
    const BackwardBegin kernel = kernels_of(call.kind).begin_backward;
    ensure(kernel != nullptr, "the op exchanges nothing backward");
    kernel(call, statistics);
  });
}

}  // namespace windlass
