// Coupled ops whose pieces exchange statistics: what the two steps of each take.

#include "windlass/cost/piece.h"

namespace windlass {
namespace {

// Forward, begin does all but the division. Backward, dQ takes the scores, dP and its own product,
// three of five; dK and dV take the scores and dP again and their own, four.
CoupledWork attention_steps(const Piece& piece, Work whole, Bytes statistics) {
  if (!piece.backward()) {
    CoupledWork steps = {std::move(whole),
                         memory_work(statistics, piece.outputs() + piece.auxiliaries())};
    steps.begin.kernels.back().written = statistics;
    return steps;
  }
  CoupledWork steps = {whole, whole};
  Kernel &begin = steps.begin.kernels.back(), &end = steps.end.kernels.back();
  begin.multiply_adds *= 3.0 / 5;
  begin.written = statistics;
  end.multiply_adds *= 4.0 / 5;
  end.read += statistics;
  return steps;
}

// What statistics are made of: one pass over it.
Bytes looked_at(const Piece& piece) {
  const OpKind kind = piece.signature().kind;
  if (!piece.backward()) return kind == OpKind::CrossEntropy ? piece.inputs() : piece.input(0);
  const bool normalizes = kind == OpKind::BatchNorm || kind == OpKind::GroupNorm;
  return piece.output_gradients() + (normalizes ? piece.input(0) : piece.saved());
}

}  // namespace

CoupledWork coupled_work_of(const Graph& graph, const Op& op, const LoopNest& nest,
                            const LocalSizes& local, Bytes statistics, const LoopBlocks& blocks) {
  const Piece piece(graph, op, nest, local, blocks);
  Work whole = work_of(graph, op, nest, local, blocks);
  if (whole.kernels.empty()) return {};
  if (op.kind == OpKind::Attention) return attention_steps(piece, std::move(whole), statistics);
  Kernel begin = whole.kernels.back(), end = begin;
  begin.read = looked_at(piece);
  begin.written = statistics;
  begin.launches = 1;
  begin.pointwise /= 2;
  end.read += statistics;
  if (op.kind == OpKind::BatchNorm || op.kind == OpKind::GroupNorm) {
    // Two passes over the operands anyway.
    end.read -= begin.read;
    end.launches = 1;
    end.pointwise /= 2;
  }
  return {{{begin}}, {{end}}};
}

}  // namespace windlass
