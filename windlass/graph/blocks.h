// Repeated structure: where the forward graph can be cut, and which pieces are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// A piece of the forward graph between two cuts, or a run of equal pieces.
struct Block {
  size_t first_op = 0;  // of the first repetition
  size_t ops = 0;       // in one repetition
  int64_t repetitions = 1;
};

// Op indices after which the graph can be cut: a single differentiable tensor is passed on. Tensors
// that are read all along the graph (a mask, an encoder's output, a position bias) are side inputs
// and do not hinder a cut. The last op is always a cut. Linear in the size of the graph.
std::vector<size_t> cut_points(const Graph& graph);

// Structure hash of ops [first, last): equal for pieces that compute the same function of their
// inputs and weights, whatever the names.
uint64_t structure_hash(const Graph& graph, size_t first, size_t last);

// The forward graph as blocks in order; consecutive equal pieces, or equal sequences of pieces, are
// one block with repetitions. Covers every op exactly once.
std::vector<Block> find_blocks(const Graph& graph);

// "conv, 3 x [10 ops], 24 x [12 ops], 4 ops".
std::string format_blocks(const std::vector<Block>& blocks);

}  // namespace windlass
