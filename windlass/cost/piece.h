// A piece of an op seen from its loops: what work_of() builds kernels from.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/cost/work.h"

namespace windlass {

// Sizes of the operands of a piece in bytes. The piece lies away from the borders where it can, so
// that it has its halo on both sides.
class Piece {
 public:
  Piece(const Graph& graph, const Op& op, const LoopNest& nest, const LocalSizes& local,
        const LoopBlocks& blocks = {});

  const Signature& signature() const { return signature_; }
  const LoopNest& nest() const { return nest_; }
  const Op& op() const { return op_; }
  bool backward() const { return op_.pass == Pass::Backward && op_.forward.valid(); }

  // Local size of a loop, and its share of the whole.
  int64_t local(size_t loop) const { return local_[loop]; }
  double share(size_t loop) const;
  // Runs that a cut loop is read as; 0: it is not said where pieces lie.
  int64_t blocks(size_t loop) const { return blocks_.empty() ? 0 : blocks_[loop]; }
  // Product of the shares of all loops: what the piece has of the op's arithmetic. 0: no piece.
  double share() const;

  // Operands of the forward op, whichever the pass; absent ones have no bytes.
  Bytes input(size_t i) const;
  Bytes output(size_t i) const;
  Bytes auxiliary(size_t i) const;
  Bytes inputs() const;
  Bytes outputs() const;
  Bytes auxiliaries() const;

  // Backward ops: gradients in their own types, and what was saved. Absent ones have no bytes.
  Bytes output_gradient(size_t i) const;
  Bytes output_gradients() const;
  Bytes input_gradient(size_t i) const;
  Bytes input_gradients() const;
  Bytes saved() const;
  // Whether the gradient of input i is asked for.
  bool wants(size_t i) const;

  // Local sizes of an operand's axes.
  Shape local_shape(const OperandMap& map, const Shape& shape) const;

 private:
  Bytes bytes(const OperandMap& map, const TensorType& type) const;

  const Graph& graph_;
  const Op& op_;
  const LoopNest& nest_;
  const LocalSizes& local_;
  const LoopBlocks blocks_;
  Signature signature_;
};

inline Bytes scaled(Bytes bytes, double factor) {
  return Bytes(static_cast<int64_t>(static_cast<double>(bytes.value) * factor));
}

// Kernels of the families that multiply. `arithmetic` is that of the piece.
void add_contraction_work(const Piece& piece, const Arithmetic& arithmetic, Work& work);
void add_convolution_work(const Piece& piece, const Arithmetic& arithmetic, Work& work);
void add_attention_work(const Piece& piece, const Arithmetic& arithmetic, Work& work);
void add_recurrent_work(const Piece& piece, const Arithmetic& arithmetic, Work& work);

}  // namespace windlass
