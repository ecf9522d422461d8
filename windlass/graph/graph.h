// The computation graph: plain data, ops in topological order, entities named by index.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/id.h"
#include "windlass/graph/attributes.h"
#include "windlass/graph/shape.h"

namespace windlass {

using TensorId = Id<struct TensorTag>;
using OpId = Id<struct OpTag>;

enum class OpKind : uint8_t {
  // contraction
  MatMul,
  Linear,
  GroupedLinear,
  SlotLinear,
  // convolution and pooling
  Conv,
  Pool,
  Resize,
  // normalisation
  BatchNorm,
  LayerNorm,
  RmsNorm,
  GroupNorm,
  LocalResponseNorm,
  // attention
  Softmax,
  Attention,
  Rotary,
  // elementwise
  Unary,
  Binary,
  Where,
  Cast,
  Dropout,
  Random,
  // lookup
  Embedding,
  Gather,
  GatherElements,
  ScatterElements,
  // layout
  Reshape,
  Transpose,
  Slice,
  Concat,
  Split,
  Pad,
  Expand,
  // reduction
  Reduce,
  CumSum,
  ArgMax,
  TopK,
  // recurrent
  Lstm,
  Gru,
  // mixture of experts
  Route,
  Combine,
  Dispatch,
  Collect,
  // loss
  CrossEntropy,
  MeanSquaredError,
  // training
  Accumulate,
  Update,
};
constexpr size_t kOpKindCount = static_cast<size_t>(OpKind::Update) + 1;

// What a tensor is to training.
enum class TensorRole : uint8_t {
  Input,       // data of the step: images, token ids
  Label,       // target of the loss
  Weight,      // parameter; trainable unless frozen
  Buffer,      // persistent, not trained: running statistics
  Constant,    // value known from the model
  Activation,  // computed by the forward pass
  Auxiliary,   // computed by the forward pass for the backward pass only: masks, statistics
  Gradient,    // of an activation
  WeightGradient,
  Master,  // fp32 copy of a 16-bit weight
  State,   // optimizer state
};

struct Tensor {
  std::string name;
  TensorType type;
  TensorRole role = TensorRole::Activation;
  OpId producer;           // none for inputs, weights, buffers, constants, states
  bool trainable = false;  // weights only
  int32_t constant = -1;   // index into Graph::constants, if the value is known
};

enum class Pass : uint8_t { Forward, Backward, Update };

// What a backward op reads of its forward op.
struct SavedRef {
  enum class Source : uint8_t { Input, Output, Auxiliary };
  Source source = Source::Input;
  int32_t index = 0;
  bool operator==(const SavedRef&) const = default;
};

// A step of computation. Optional operands that are absent are invalid ids.
//
// A forward op has the operands its kind says. The backward op of a forward op has the same kind
// and attributes, Pass::Backward and `forward` set; its inputs are the gradients of the forward
// outputs (absent where nobody needs them) followed by one tensor for each entry of `saved`; its
// outputs are the gradients of the forward inputs (absent where not wanted).
struct Op {
  OpKind kind = OpKind::Unary;
  Pass pass = Pass::Forward;
  Attrs attrs = {};
  std::vector<TensorId> inputs = {};
  std::vector<TensorId> outputs = {};
  std::vector<TensorId> auxiliaries = {};  // forward ops of a training graph: for backward only
  OpId forward = {};                       // backward ops
  std::vector<SavedRef> saved = {};        // backward ops
  std::string name;
};

// The value of a constant tensor, row-major. Integers are exact up to 2^53.
struct ConstantValue {
  std::vector<double> values;
};

struct LoopNest;  // op_info.h

// A network, and after differentiation a whole training step.
//
// Invariants: ops are in topological order; each tensor has at most one producer; operand types
// agree with what OpInfo::infer says. `check_graph` verifies them.
struct Graph {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  std::vector<TensorId> inputs;   // in the order of the model
  std::vector<TensorId> outputs;  // of the model, before the loss
  TensorId loss;                  // scalar; invalid if there is none
  std::vector<ConstantValue> constants;
  // By op, as far as there are: loops that are not those which the op table finds for these sizes.
  // A micro-batch keeps the loops of a larger one, so that shardings mean the same.
  std::shared_ptr<const std::vector<LoopNest>> loops = nullptr;

  const Tensor& operator[](TensorId id) const { return tensors[id.index()]; }
  Tensor& operator[](TensorId id) { return tensors[id.index()]; }
  const Op& operator[](OpId id) const { return ops[id.index()]; }
  Op& operator[](OpId id) { return ops[id.index()]; }

  // Type of an operand, with DType::None for an absent one.
  TensorType type_of(TensorId id) const {
    return id.valid() ? tensors[id.index()].type : TensorType{};
  }
};

std::string_view role_name(TensorRole role);

// Throws Error{Internal} naming the first violated invariant.
void check_graph(const Graph& graph);

// Elements of the trainable weights, each once.
int64_t parameter_count(const Graph& graph);

// For each tensor, the ops that read it, ascending and without repetition.
std::vector<std::vector<OpId>> consumers_of(const Graph& graph);

// Removes ops whose results reach neither the outputs nor the loss, then tensors nobody refers to.
// Inputs and labels stay. Returns for each old tensor its new id (invalid if it was removed).
std::vector<TensorId> remove_dead(Graph& graph);

// All floating-point tensors of 64 or 32 bits in `dtype` instead: what `--dtype` does. Constants
// keep their values; the loss stays fp32.
Graph with_dtype(const Graph& graph, DType dtype);

// For each tensor, the tensor whose memory it shares: itself unless it is a view (Reshape,
// Identity).
std::vector<TensorId> storage_roots(const Graph& graph);

}  // namespace windlass
