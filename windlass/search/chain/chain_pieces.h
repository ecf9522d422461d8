// The forward ops of each stage as a chain of pieces, and which saved tensors each piece decides
// about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "windlass/strategy/strategy.h"
#include "windlass/task/facts.h"

namespace windlass {

// Forward ops [first, last) of one stage.
struct ChainPiece {
  size_t first = 0, last = 0;
  std::vector<int32_t> saved = {};  // that it decides about: made and read here only, or its output
  int32_t output = -1;  // the one saved tensor that the next piece starts from; -1: the last
  std::vector<OpId> backward = {};  // in order
};

// Pieces by stage. Cut where one saved tensor is passed on (cut_points); neighbours that save least
// are joined until at most `most` are left in a stage. A saved tensor that several pieces read (a
// mask, an encoder's output) belongs to none and is left as it is.
std::vector<std::vector<ChainPiece>> chain_pieces(const TrainingGraph& training,
                                                  const TrainingFacts& facts,
                                                  const Strategy& strategy, size_t most);

}  // namespace windlass
