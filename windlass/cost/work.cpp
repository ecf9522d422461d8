#include "windlass/cost/work.h"

#include <algorithm>

#include "windlass/cost/piece.h"
#include "windlass/graph/differentiate.h"

namespace windlass {
namespace {

bool is_view(const Signature& s) {
  return op_info(s.kind).view ||
         (s.kind == OpKind::Unary && s.as<UnaryAttrs>().fn == UnaryFn::Identity);
}

struct Moved {
  Bytes read, written;
  int32_t launches = 1;
};

// Rows that an index picks out of a table: what is read is what comes out, not the table.
Moved moved_forward(const Piece& piece) {
  const Signature& s = piece.signature();
  const Bytes written = piece.outputs() + piece.auxiliaries();
  switch (s.kind) {
    case OpKind::Embedding: return {piece.input(0) + piece.output(0), written};
    case OpKind::Gather: return {piece.input(1) + piece.output(0), written};
    case OpKind::Slice: return {piece.output(0), written};
    case OpKind::BatchNorm:
      // Statistics of the batch, then the values.
      if (s.as<BatchNormAttrs>().training)
        return {piece.inputs() + piece.input(0), written + piece.input(3) + piece.input(4), 2};
      return {piece.inputs(), written};
    case OpKind::GroupNorm: return {piece.inputs() + piece.input(0), written, 2};
    default: return {piece.inputs(), written};
  }
}

Moved moved_backward(const Piece& piece) {
  const Signature& s = piece.signature();
  const Bytes gradients = piece.output_gradients();
  const Bytes written = piece.input_gradients();
  switch (s.kind) {
    case OpKind::Embedding:
    case OpKind::Gather:
      // Zeros, then rows added where they belong.
      return {gradients + gradients + piece.saved(), written + gradients, 2};
    case OpKind::Slice: return {gradients, written};
    case OpKind::BatchNorm:
    case OpKind::GroupNorm:
      // Sums over the batch or group, then the values.
      return {gradients + gradients + piece.saved() + piece.input(0), written, 2};
    case OpKind::LayerNorm:
    case OpKind::RmsNorm:
      // The gradients of scale and bias are sums over rows, in a kernel of their own.
      if (piece.wants(0) && (piece.wants(1) || piece.wants(2)))
        return {gradients + gradients + piece.saved() + piece.input(0), written, 2};
      return {gradients + piece.saved(), written};
    default: return {gradients + piece.saved(), written};
  }
}

void add_memory_bound(const Piece& piece, const Arithmetic& arithmetic, Work& work) {
  const Moved moved = piece.backward() ? moved_backward(piece) : moved_forward(piece);
  Kernel kernel;
  kernel.family = op_info(piece.signature().kind).family;
  kernel.precision = precision_of(
      piece.signature().inputs.empty() ? DType::F32 : piece.signature().inputs[0].dtype);
  kernel.pointwise = arithmetic.pointwise;
  kernel.read = moved.read;
  kernel.written = moved.written;
  kernel.launches = moved.launches;
  kernel.cast = piece.signature().kind == OpKind::Cast;
  work.kernels.push_back(kernel);
}

Work update_piece(const Piece& piece) {
  const Signature& s = piece.signature();
  return update_work(s.as<UpdateAttrs>().optimizer,
                     static_cast<double>(element_count(s.shape(0))) * piece.share(),
                     s.inputs[0].dtype, s.inputs[1].dtype, s.has_input(2));
}

double update_operations(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::Sgd: return 2;
    case OptimizerKind::Momentum: return 4;
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return 14;
  }
  return 0;
}

}  // namespace

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::F64: return Precision::Fp64;
    case DType::BF16: return Precision::Bf16;
    case DType::F16: return Precision::Fp16;
    default: return Precision::Fp32;
  }
}

Work work_of(const Graph& graph, const Op& op, const LoopNest& nest, const LocalSizes& local,
             const LoopBlocks& blocks) {
  Work work;
  const Piece piece(graph, op, nest, local, blocks);
  const double share = piece.share();
  if (share <= 0 || is_view(piece.signature())) return work;
  if (op.kind == OpKind::Update) return update_piece(piece);
  if (piece.backward() &&
      std::none_of(op.outputs.begin(), op.outputs.end(), [](TensorId id) { return id.valid(); }))
    return work;
  Arithmetic arithmetic = arithmetic_of(graph, op);
  arithmetic.multiply_adds *= share;
  arithmetic.pointwise *= share;
  switch (op.kind) {
    case OpKind::MatMul:
    case OpKind::Linear:
    case OpKind::GroupedLinear:
    case OpKind::SlotLinear: add_contraction_work(piece, arithmetic, work); break;
    case OpKind::Conv: add_convolution_work(piece, arithmetic, work); break;
    case OpKind::Attention: add_attention_work(piece, arithmetic, work); break;
    case OpKind::Lstm:
    case OpKind::Gru: add_recurrent_work(piece, arithmetic, work); break;
    default: add_memory_bound(piece, arithmetic, work); break;
  }
  return work;
}

Work update_work(OptimizerKind optimizer, double elements, DType weight, DType gradient,
                 bool master) {
  if (elements <= 0) return {};
  constexpr double kStateBytes = 4;  // states and masters are fp32
  const auto weight_bytes = static_cast<double>(element_bytes(weight));
  const double states = kStateBytes * optimizer_state_count(optimizer);
  const double parameter = master ? kStateBytes : weight_bytes;
  const double read = static_cast<double>(element_bytes(gradient)) + parameter + states;
  const double written = parameter + states + (master ? weight_bytes : 0);
  Kernel kernel;
  kernel.family = OpFamily::Update;
  kernel.pointwise = elements * update_operations(optimizer);
  kernel.read = Bytes(static_cast<int64_t>(elements * read));
  kernel.written = Bytes(static_cast<int64_t>(elements * written));
  return {{kernel}};
}

Work memory_work(Bytes read, Bytes written) {
  if (read.value <= 0 && written.value <= 0) return {};
  Kernel kernel;
  kernel.read = read;
  kernel.written = written;
  return {{kernel}};
}

namespace {

// Scalar operations for an element. Storing: least and greatest and whether it is finite (3),
// Philox with ten rounds of two multiplications, two high halves, four exclusive ors and two sums
// for four words (25), its place on the ladder and the code (6), shift and or (2). Reading back:
// shift and mask (2), multiply, add, compare, select (4).
constexpr double kCompressOperations = 36, kDecompressOperations = 6;

Work packing(double operations, Bytes read, Bytes written) {
  Work work = memory_work(read, written);
  for (Kernel& kernel : work.kernels) {
    kernel.pointwise = operations;
    kernel.compression = true;
  }
  return work;
}

}  // namespace

Work compression_work(int64_t elements, Bytes plain, Bytes packed) {
  return packing(kCompressOperations * static_cast<double>(elements), plain, packed);
}

Work decompression_work(int64_t elements, Bytes packed, Bytes plain) {
  return packing(kDecompressOperations * static_cast<double>(elements), packed, plain);
}

}  // namespace windlass
