#include "windlass/graph/coupled.h"

namespace windlass {

Exchange exchange_of(const OpPiece& piece, Pass pass, const std::vector<bool>& wanted) {
  const OpInfo& info = op_info(piece.kind);
  if (!piece.coupled || info.exchange == nullptr) return {};
  return info.exchange(piece.signature(), pass, wanted);
}

int64_t exchanged_scalars(const LoopNest& nest, const std::vector<int64_t>& sizes,
                          const std::vector<bool>& cut, Pass pass) {
  int64_t each = 0, points = 1;
  for (size_t l = 0; l < nest.loops.size(); ++l) {
    const LoopDim& loop = nest.loops[l];
    const int64_t own = pass == Pass::Backward ? loop.coupling.backward : loop.coupling.forward;
    if (couples(loop) && cut[l]) each = std::max(each, own);
    if (!couples(loop) && loop.role != LoopRole::Whole) points *= sizes[l];
  }
  return each * points;
}

}  // namespace windlass
