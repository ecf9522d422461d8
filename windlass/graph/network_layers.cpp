#include "windlass/graph/network_layers.h"

#include "windlass/graph/blocks.h"

namespace windlass {

std::vector<int32_t> find_layers(const Graph& graph) {
  const std::vector<size_t> cuts = cut_points(graph);
  std::vector<int32_t> layers;
  size_t piece = 0;
  for (size_t op = 0; op < graph.ops.size() && graph.ops[op].pass == Pass::Forward; ++op) {
    layers.push_back(static_cast<int32_t>(piece));
    if (piece + 1 < cuts.size() && cuts[piece] == op) ++piece;
  }
  return layers;
}

}  // namespace windlass
