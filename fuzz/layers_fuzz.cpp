// Graphs of layers: whatever is read can be priced.

#include "fuzz/exercise.h"

#include "windlass/model/pase/layer_graph.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const LayerGraph graph = layer_graph_from_json(fuzz::as_text(data, size), "x.json");
    check_layer_graph(graph, "x.json");
    ensure(!graph.layers.empty(), "a graph without layers");
  });
  return 0;
}
