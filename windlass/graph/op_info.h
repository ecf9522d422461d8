// The op table: everything windlass knows of an op kind, one entry each.
//
// An op states its loop dimensions and how the axes of each operand follow from them. Local shapes,
// legal splits, partial sums, halo exchange and the layouts of gradients are all derived from that:
// the gradient of an operand has the operand's own map, and is a partial sum over every split loop
// that the operand does not have (of a Coupled one, pieces exchange enough to know all of it).
// op_piece.h makes pieces. Three conventions make this exact:
//  - an operand that is added to the result (a bias) and lacks a split Reduced loop is added by the
//    first piece of that loop only; its gradient is the same on all of them;
//  - a piece of a mean (Reduce, the losses) divides by the count of the whole op, not by its own;
//  - elements that no window touches (the tail of a strided convolution) have gradient zero.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

enum class OpFamily : uint8_t {
  Contraction,
  Convolution,
  Pooling,
  Normalization,
  Attention,
  Elementwise,
  Lookup,
  Layout,
  Reduction,
  Recurrent,
  Routing,
  Loss,
  Update,
};
std::string_view family_name(OpFamily family);

// What happens when a loop is split over devices.
enum class LoopRole : uint8_t {
  Free,     // pieces are independent
  Reduced,  // outputs that lack the loop hold partial results, combined by `combine`
  Coupled,  // pieces exchange `Coupling` values; what lacks the loop comes out whole on each
  Whole,    // cannot be split
};
enum class CombineFn : uint8_t { Sum, Max, Min };

// Scalars that each piece contributes to an exchange (coupled.h), per point of the loops that have
// no coupling and are not Whole. A Reduced loop may have one as well: of a maximum's gradient the
// pieces must know how many elements share it.
struct Coupling {
  int64_t forward = 0;
  int64_t backward = 0;
};

struct LoopDim {
  std::string name;
  int64_t size = 1;
  LoopRole role = LoopRole::Free;
  CombineFn combine = CombineFn::Sum;
  Coupling coupling = {};
};

// How an operand's axis follows from a loop: loop indices [a, b) touch the axis indices
// [a * stride + offset, (b - 1) * stride + offset + window), cut to the axis. loop < 0: the whole
// axis, whatever the split. A window larger than the stride is a halo.
struct AxisMap {
  int32_t loop = -1;
  int64_t stride = 1;
  int64_t offset = 0;
  int64_t window = 1;
  // The axis is so many runs of equal size laid end to end, and the loop goes through all of them
  // at once: index i of the loop touches index i of every run.
  int64_t blocks = 1;
  // The last window ends before the axis does, or behind it. loops_of() finds it.
  bool misses_end = false;
};
using OperandMap = std::vector<AxisMap>;

struct LoopNest {
  std::vector<LoopDim> loops;
  std::vector<OperandMap> inputs;  // parallel to the op's inputs; empty for absent ones
  std::vector<OperandMap> outputs;
  std::vector<OperandMap> auxiliaries;
};

// Half-open range of indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Indices of an axis of `axis_size` that the loop range touches.
Range axis_range(const AxisMap& map, Range loop, int64_t axis_size);

// What an op is asked about: its attributes and the types of its operands. Absent operands have
// DType::None. `outputs` and `auxiliaries` may be empty where only the inputs are known.
struct Signature {
  OpKind kind = OpKind::Unary;
  const Attrs* attrs = nullptr;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  std::vector<TensorType> auxiliaries;

  template <typename T>
  const T& as() const {
    return std::get<T>(*attrs);
  }
  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  const TensorType& input(size_t i) const { return inputs[i]; }
  const Shape& shape(size_t i) const { return inputs[i].shape; }
};

// Arithmetic of an op. A multiply-add of a contraction (matmul, convolution, attention, recurrent
// cell) counts 2 flops and is what "flops" means in windlass, as in PyTorch's counter and in
// published tables; everything else (activations, norms, softmax) is `pointwise` and priced by its
// bytes. Causal attention is counted in full.
struct Arithmetic {
  double multiply_adds = 0;
  double pointwise = 0;

  Flops flops() const { return Flops(2 * multiply_adds); }
  Arithmetic& operator+=(const Arithmetic& other) {
    multiply_adds += other.multiply_adds;
    pointwise += other.pointwise;
    return *this;
  }
};

// How the gradient of one input arises.
enum class GradientSource : uint8_t {
  None,        // not differentiable
  Computed,    // an output of the backward op
  PassThrough  // is the gradient of output 0, unchanged
};

struct GradientRule {
  std::vector<GradientSource> inputs;
  std::vector<SavedRef> saved;  // what the backward op reads, given which gradients are wanted
  Arithmetic arithmetic;        // of the backward op
};

struct OpPiece;   // op_piece.h
struct Exchange;  // coupled.h

struct OpInfo {
  OpKind kind;
  std::string_view name;
  OpFamily family;
  size_t min_inputs;
  size_t max_inputs;
  bool view = false;          // output 0 shares the memory of input 0; likewise their gradients
  bool memory_bound = false;  // time follows from bytes, not flops
  int32_t bias = -1;          // input that is added to the result, in one piece of a reduced loop

  // Output types. Throws Error{Input} on operands that contradict each other.
  std::vector<TensorType> (*infer)(const Signature&) = nullptr;
  // Tensors that forward keeps for backward beyond its inputs and outputs; null if none.
  std::vector<TensorType> (*auxiliaries)(const Signature&) = nullptr;
  LoopNest (*loops)(const Signature&) = nullptr;
  // Completes a piece whose regions and types are there: attributes that depend on sizes, and what
  // it must know of the whole op. Null if a piece is the same op on smaller operands.
  void (*piece)(const Signature& whole, OpPiece& piece) = nullptr;
  // What pieces of loops with a coupling exchange in a pass; null if there are none.
  Exchange (*exchange)(const Signature& local, Pass pass,
                       const std::vector<bool>& wanted) = nullptr;
  Arithmetic (*arithmetic)(const Signature&) = nullptr;
  // Which inputs can have gradients and what the backward op needs; null if none can. `wanted[i]`
  // says whether the gradient of input i is asked for.
  GradientRule (*gradient)(const Signature&, const std::vector<bool>& wanted) = nullptr;
  // Inputs that the op overwrites in place.
  std::vector<int32_t> (*writes)(const Signature&) = nullptr;
};

const OpInfo& op_info(OpKind kind);

// Signature of a forward or update op of `graph`; for a backward op, of its forward op.
Signature signature_of(const Graph& graph, const Op& op);

// Loops of an op of a graph; a backward op has those of its forward op.
LoopNest loops_of(const Graph& graph, const Op& op);

// Arithmetic of an op of a graph, whichever pass.
Arithmetic arithmetic_of(const Graph& graph, const Op& op);

// Bytes that an op reads and writes; views and absent operands count nothing.
Bytes traffic_of(const Graph& graph, const Op& op);

// Which gradients a backward op produces: outputs present, pass-through ones not.
std::vector<bool> wanted_of(const Op& backward);

}  // namespace windlass
