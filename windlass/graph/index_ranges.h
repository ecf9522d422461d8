// Which whole numbers an input may hold, from what is looked up with it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// What sets the tightest limit.
enum class IndexUse : uint8_t {
  None,      // nothing is known to be looked up
  Table,     // rows of an embedding
  Axis,      // places along an axis
  Classes,   // classes of a loss
  Compared,  // compared with known numbers, as one-hot codes are: others are legal, but match none
};
std::string_view index_use_name(IndexUse use);

// Numbers from `least` on, below `past`; and beside them the one that a loss leaves out.
struct IndexRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t past = std::numeric_limits<int64_t>::max();
  IndexUse use = IndexUse::None;
  bool looked_up = false;  // somewhere in an embedding
  std::optional<int64_t> ignored = {};

  // Whether a number outside is an error.
  bool binding() const { return use != IndexUse::None && use != IndexUse::Compared; }
};

// For each tensor of whole numbers the range in which everything that is looked up with it is
// there: the intersection over all readers, followed backwards through views, casts, slices,
// joining, and sums and products with known numbers. What passes another op (Where, Clip, Mod) is
// taken to be put right there, and is not limited. Tensors of other types have no limit.
std::vector<IndexRange> index_ranges(const Graph& graph);

}  // namespace windlass
