// Graphs of layers as PaSE sees them (Elango, "PaSE: Parallelization Strategies for Efficient DNN
// Training", IPDPS 2021): a vertex is a layer with an iteration space, an edge a tensor. A source
// of problems for the exact search with PaSE's own cost model, which does not know windlass's ops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace windlass {

enum class LayerKind : uint8_t {
  Conv,            // space b, c, ho, wo, r, s, n
  Pooling,         // b, c, ho, wo
  FullyConnected,  // lead ..., n, k
  Einsum,          // letters of the output, then those that are summed in the order of input 0
  Lstm,            // layers, sequence, b, n, k
  Norm,            // the tensor's axes, as of all below
  Softmax,
  SoftmaxCrossEntropy,
  Elementwise,
  ReduceMean,
  Concat,   // size 1 at the axis
  Split,    // size 1 at the axis
  Stack,    // of the output, size 1 at the axis
  Unstack,  // of the input, size 1 at the axis
  Ravel,    // of the input
  Unravel,  // of the output
  Transpose,
  Variable,
};
// As in graph files: "Conv", "FC", "SoftmaxCrossEntropy".
std::string_view layer_kind_name(LayerKind kind);

using Extents = std::vector<int64_t>;

struct Layer {
  LayerKind kind = LayerKind::Elementwise;
  Extents space = {};
  std::vector<Extents> inputs = {}, outputs = {};  // shapes; not every weight is listed
  Extents filter = {};                             // Conv: n, c, r, s; Pooling: r, s
  Extents axes = {};              // of the space: normalised, concatenated, reduced
  int64_t pointwise = 0;          // element-wise functions fused into it
  int64_t units = 0, layers = 0;  // Lstm
  std::string equation = {};      // Einsum: "abc,cd->abd"
  auto operator<=>(const Layer&) const = default;
};

struct LayerEdge {
  size_t from = 0, output = 0, to = 0, input = 0;
  auto operator<=>(const LayerEdge&) const = default;
};

// Invariants (check_layer_graph): sizes and ranks agree with the kinds, edges join tensors of the
// same shape, from an earlier vertex to a later one.
struct LayerGraph {
  std::string name;
  int64_t batch = 0;
  int64_t cutoff = 1;  // a dimension is split no further than into parts of this size
  std::vector<Layer> layers;
  std::vector<LayerEdge> edges;  // in order of creation
};

// Throws Error{Input} naming the vertex.
void check_layer_graph(const LayerGraph& graph, const std::string& where);

// Without the entries at these axes.
Extents without_axes(const Extents& extents, const Extents& axes);

// Letters of an einsum: of both inputs, of the output, and of the iteration space.
struct EinsumLetters {
  std::string first, second, output, space;
};
// Throws Error{Input} unless it is "xy,yz->xz" with distinct letters in each part, all of the
// output's in some input, and every letter of one input alone in the output.
EinsumLetters einsum_letters(std::string_view equation);

// Whether a JSON text is a graph file: an object with `vertices` and `edges`.
bool is_layer_graph(std::string_view text);
// Reads a graph file. `where` begins messages. Throws Error{Input}. Safe on any bytes.
LayerGraph layer_graph_from_json(std::string_view text, const std::string& where);

// The networks of PaSE's evaluation, as its released code builds them, and DenseNet-121 in the same
// manner: alexnet, inception-v3, rnnlm, transformer, resnet-101, densenet-121.
std::vector<std::string_view> pase_network_names();
// With PaSE's batch size unless given. Nothing if there is no such network.
std::optional<LayerGraph> pase_network(std::string_view name, int64_t batch = 0);

}  // namespace windlass
