// Kernels: what carries out an op on a device, forward and backward, written with ATen.
//
// A kernel reads its operands and makes its results; nothing else of it stays. Operands are dense
// and row-major. Results are either fresh tensors that the kernel makes (so that a library that
// allocates its own result costs no copy), or sums that it adds to. What it allocates beside its
// results is workspace, which counts against the device's limit: out-variants, in-place steps and
// blocked loops keep it small. Kernels run below autograd.
//
// A kernel runs a piece of an op (graph/op_piece.h); a whole op is the piece whose facts are all
// default. Of a coupled op (graph/coupled.h) the begin kernel makes the statistics of a piece, and
// the other ends it, given the merged ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/graph/graph.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/op_piece.h"

namespace windlass {

at::ScalarType scalar_type(DType dtype);

// Names the random numbers of one op in one step. The same key draws the same numbers, element by
// element, however often it is asked and by however many threads: a recomputed forward pass is
// identical to the first. Pieces of the op draw theirs where they lie (PieceFacts::random).
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

// The facts of a whole op.
inline const PieceFacts kWholeOp;

// A result that a kernel is asked for.
class Result {
 public:
  Result() = default;  // not wanted
  explicit Result(TensorType type) : type_(std::move(type)) {}
  // The result is added to `sum`, which has this type.
  Result(TensorType type, at::Tensor sum)
      : type_(std::move(type)), tensor_(std::move(sum)), adds_(true) {}

  bool wanted() const { return type_.present(); }
  bool adds() const { return adds_; }
  const TensorType& type() const { return type_; }

  // Not adding: a fresh tensor whose every element the kernel is going to write.
  at::Tensor& allocate();
  // Adding: what to add to, in place.
  at::Tensor& sum() { return tensor_; }
  // Makes `value` the result, or adds it. It may have another dtype. A value that is a view, or not
  // contiguous, or shared with others, is copied.
  void set(at::Tensor value);

  // Writes a number over what the kernel has made.
  void fill(double value) { tensor_.fill_(value); }

  const at::Tensor& tensor() const { return tensor_; }
  at::Tensor take() { return std::move(tensor_); }

 private:
  TensorType type_;
  at::Tensor tensor_;
  bool adds_ = false;
};

struct ForwardCall {
  OpKind kind;
  const Attrs& attributes;
  std::span<const at::Tensor> inputs;  // undefined where absent
  std::span<Result> outputs;
  std::span<Result> auxiliaries;  // wanted in training only
  RandomKey random = {};
  bool again = false;  // a recomputation: inputs that the op overwrites stay as they are
  const PieceFacts& facts = kWholeOp;
  const at::Tensor* statistics = nullptr;  // merged ones, where the piece is coupled
  // The result of an op that sums over the samples what the loss divides by, as the data of all
  // micro-batches have it (graph/reference/mean_counts.h). Negative: what is computed.
  double known_result = -1;

  template <typename T>
  const T& attrs() const {
    return std::get<T>(attributes);
  }
  bool has(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  // Throws Error{Internal} if it is absent.
  const at::Tensor& input(size_t i) const;
  bool wants_auxiliary(size_t i) const { return i < auxiliaries.size() && auxiliaries[i].wanted(); }
};

struct BackwardCall {
  OpKind kind;
  const Attrs& attributes;
  std::span<const TensorType> input_types;  // of the forward op; None where absent
  std::span<const at::Tensor> gradients;    // of the forward outputs; undefined where absent
  std::span<const SavedRef> saved_refs;     // what the tensors of `saved` are
  std::span<const at::Tensor> saved;
  std::span<Result> results;  // by forward input
  RandomKey random = {};
  const PieceFacts& facts = kWholeOp;
  const at::Tensor* statistics = nullptr;  // merged ones, where the piece is coupled

  template <typename T>
  const T& attrs() const {
    return std::get<T>(attributes);
  }
  bool wants(size_t i) const { return i < results.size() && results[i].wanted(); }
  bool has_gradient(size_t i) const { return i < gradients.size() && gradients[i].defined(); }
  const Shape& shape(size_t i) const { return input_types[i].shape; }

  // Throw Error{Internal} naming what is absent or was not saved.
  const at::Tensor& gradient(size_t i = 0) const;
  const at::Tensor& input(size_t i) const { return find(SavedRef::Source::Input, i); }
  const at::Tensor& output(size_t i) const { return find(SavedRef::Source::Output, i); }
  const at::Tensor& auxiliary(size_t i) const { return find(SavedRef::Source::Auxiliary, i); }
  bool has_input(size_t i) const { return look_up(SavedRef::Source::Input, i) != nullptr; }

 private:
  const at::Tensor* look_up(SavedRef::Source source, size_t index) const;
  const at::Tensor& find(SavedRef::Source source, size_t index) const;
};

using ForwardKernel = void (*)(ForwardCall&);
using BackwardKernel = void (*)(BackwardCall&);
// Write the statistics of a piece, which are there in the type that the op table says. What
// BackwardCall::wants says is wanted is not computed.
using ForwardBegin = void (*)(const ForwardCall&, at::Tensor& statistics);
using BackwardBegin = void (*)(const BackwardCall&, at::Tensor& statistics);

// Runs an op. Every result that is wanted is set afterwards, with the type it was asked for
// (Error{Internal} otherwise). Throws Error{Input} on values that make no sense, such as a token
// beyond the vocabulary, and as errors.h says for what libtorch refuses; messages begin with the
// op's kind.
void run_forward(ForwardCall& call);
void run_backward(BackwardCall& call);

void begin_forward(const ForwardCall& call, at::Tensor& statistics);
void begin_backward(const BackwardCall& call, at::Tensor& statistics);

// Runs an op of a training graph, forward or backward, whose tensors are those of `graph`: a whole
// op, or by its facts a piece that has the attributes of the op. `inputs` are parallel to the op's,
// undefined where absent; `results` are its outputs, then its auxiliaries. `random` is that of the
// forward op. `mean_count` is what mean_counts (graph/reference/mean_counts.h) says of the forward
// op: of a CrossEntropy it takes the place of PieceFacts::mean_count, of another op it is the
// result. Negative: nothing.
void run_op(const Graph& graph, const Op& op, std::span<const at::Tensor> inputs,
            std::span<Result> results, RandomKey random = {}, bool again = false,
            const PieceFacts& facts = kWholeOp, double mean_count = -1);

// Runs a piece of an op of a training graph, forward or backward. `op` says the pass, which results
// are wanted and what is saved; `piece` is that of its forward signature. Operands are as in
// run_op, in the shapes that the piece has here; so is `mean_count`. `statistics` are the merged
// ones where exchange_of the piece is needed (Error{Internal} if they are absent then).
void run_piece(const Op& op, const OpPiece& piece, std::span<const at::Tensor> inputs,
               std::span<Result> results, RandomKey random = {}, bool again = false,
               const at::Tensor* statistics = nullptr, double mean_count = -1);

// The statistics of a coupled piece, made from the inputs that run_piece takes: written to
// `statistics` if it is defined, which then is contiguous and of type exchange_of(piece, pass,
// wanted).type, otherwise allocated.
void begin_piece(const Op& op, const OpPiece& piece, std::span<const at::Tensor> inputs,
                 RandomKey random, at::Tensor& statistics);

// contraction.cpp
void matmul_forward(ForwardCall& call);
void matmul_backward(BackwardCall& call);
void linear_forward(ForwardCall& call);
void linear_backward(BackwardCall& call);

// experts.cpp
void grouped_linear_forward(ForwardCall& call);
void grouped_linear_backward(BackwardCall& call);
void slot_linear_forward(ForwardCall& call);
void slot_linear_backward(BackwardCall& call);

// convolution.cpp
void conv_forward(ForwardCall& call);
void conv_backward(BackwardCall& call);

// pooling.cpp
void pool_forward(ForwardCall& call);
void pool_backward(BackwardCall& call);
void resize_forward(ForwardCall& call);
void resize_backward(BackwardCall& call);

// normalization.cpp
void batch_norm_forward(ForwardCall& call);
void batch_norm_backward(BackwardCall& call);
void batch_norm_begin(const ForwardCall& call, at::Tensor& statistics);
void batch_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics);
void layer_norm_forward(ForwardCall& call);
void layer_norm_backward(BackwardCall& call);
void layer_norm_begin(const ForwardCall& call, at::Tensor& statistics);
void layer_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics);
void rms_norm_forward(ForwardCall& call);
void rms_norm_backward(BackwardCall& call);
void rms_norm_begin(const ForwardCall& call, at::Tensor& statistics);
void rms_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics);
void group_norm_forward(ForwardCall& call);
void group_norm_backward(BackwardCall& call);
void group_norm_begin(const ForwardCall& call, at::Tensor& statistics);
void group_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics);
void local_response_norm_forward(ForwardCall& call);
void local_response_norm_backward(BackwardCall& call);

// recurrent.cpp
void lstm_forward(ForwardCall& call);
void lstm_backward(BackwardCall& call);
void gru_forward(ForwardCall& call);
void gru_backward(BackwardCall& call);

// softmax.cpp
void softmax_forward(ForwardCall& call);
void softmax_backward(BackwardCall& call);
void softmax_begin(const ForwardCall& call, at::Tensor& statistics);
void softmax_begin_backward(const BackwardCall& call, at::Tensor& statistics);

// attention.cpp
void attention_forward(ForwardCall& call);
void attention_backward(BackwardCall& call);
void attention_begin(const ForwardCall& call, at::Tensor& statistics);
void attention_begin_backward(const BackwardCall& call, at::Tensor& statistics);

// rotary.cpp
void rotary_forward(ForwardCall& call);
void rotary_backward(BackwardCall& call);

// unary.cpp
void unary_forward(ForwardCall& call);
void unary_backward(BackwardCall& call);
void cast_forward(ForwardCall& call);
void cast_backward(BackwardCall& call);

// elementwise.cpp
void binary_forward(ForwardCall& call);
void binary_backward(BackwardCall& call);
void where_forward(ForwardCall& call);
void where_backward(BackwardCall& call);
void dropout_forward(ForwardCall& call);
void dropout_backward(BackwardCall& call);
void random_forward(ForwardCall& call);
void accumulate_forward(ForwardCall& call);

// lookup.cpp
void embedding_forward(ForwardCall& call);
void embedding_backward(BackwardCall& call);
void gather_forward(ForwardCall& call);
void gather_backward(BackwardCall& call);

// elements.cpp
void gather_elements_forward(ForwardCall& call);
void gather_elements_backward(BackwardCall& call);
void scatter_elements_forward(ForwardCall& call);
void scatter_elements_backward(BackwardCall& call);
void top_k_forward(ForwardCall& call);
void top_k_backward(BackwardCall& call);

// layout.cpp
void reshape_forward(ForwardCall& call);
void reshape_backward(BackwardCall& call);
void transpose_forward(ForwardCall& call);
void transpose_backward(BackwardCall& call);
void slice_forward(ForwardCall& call);
void slice_backward(BackwardCall& call);
void concat_forward(ForwardCall& call);
void concat_backward(BackwardCall& call);
void split_forward(ForwardCall& call);
void split_backward(BackwardCall& call);
void pad_forward(ForwardCall& call);
void pad_backward(BackwardCall& call);
void expand_forward(ForwardCall& call);
void expand_backward(BackwardCall& call);

// reduction.cpp
void reduce_forward(ForwardCall& call);
void reduce_backward(BackwardCall& call);
void reduce_begin_backward(const BackwardCall& call, at::Tensor& statistics);
void cumsum_forward(ForwardCall& call);
void cumsum_backward(BackwardCall& call);
void argmax_forward(ForwardCall& call);

// routing.cpp
void route_forward(ForwardCall& call);
void route_backward(BackwardCall& call);
void combine_forward(ForwardCall& call);
void combine_backward(BackwardCall& call);

// slots.cpp
void dispatch_forward(ForwardCall& call);
void dispatch_backward(BackwardCall& call);
void collect_forward(ForwardCall& call);
void collect_backward(BackwardCall& call);

// loss.cpp
void cross_entropy_forward(ForwardCall& call);
void cross_entropy_backward(BackwardCall& call);
void cross_entropy_begin(const ForwardCall& call, at::Tensor& statistics);
void mean_squared_error_forward(ForwardCall& call);
void mean_squared_error_backward(BackwardCall& call);

}  // namespace windlass
