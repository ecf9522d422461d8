// Where a network is cut: pipeline stages, packs, checkpoints.
#pragma once

#include <cstddef>
#include <vector>

#include "windlass/graph/differentiate.h"

namespace windlass {

// Ends of `count` contiguous pieces of the forward ops, the last one being all of them. A block
// that is repeated is shared out evenly, as people do by hand, where its number allows it;
// otherwise the heaviest piece is as light as the cut points allow. Throws Error{Input} if the
// network cannot be cut into so many pieces. `whole_layers`: no piece ends within one of the layers
// (the repetitions of the block that is repeated most) or has none of them, as other systems want
// it; the network is not cut then if there are fewer.
std::vector<size_t> cut_evenly(const TrainingGraph& training, size_t count,
                               bool whole_layers = false);

// The most pieces it can be cut into.
size_t most_pieces(const TrainingGraph& training);

// Ends of the pieces whose inputs are kept when everything inside is computed again. Of blocks:
// each repetition of a repeated block, and stretches of other ops that are at least as long as the
// smallest of them, in pieces of about its number of ops; what is shorter (embeddings, heads) is
// left out at both ends. Sqrt, and networks without repeated blocks: as many pieces as the square
// root of the number of cuts, about even in saved bytes. Cuts are where one tensor is passed on;
// where more than half of what is saved lies between two of them, wherever all that is passed on
// is saved anyway.
struct Checkpoints {
  std::vector<size_t> ends;  // ascending
  size_t first = 0;          // ops before and after stay as they are
  size_t last = 0;
};
Checkpoints block_checkpoints(const TrainingGraph& training);
Checkpoints sqrt_checkpoints(const TrainingGraph& training);

}  // namespace windlass
