#include "windlass/graph/autocast.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/graph/builder.h"
#include "windlass/graph/differentiate.h"

namespace windlass {
namespace {

// x -> two products that share it -> add -> layer norm -> product -> loss.
Graph network() {
  GraphBuilder g("net");
  const auto weight = [&](const std::string& name, Shape shape) {
    return g.weight(name, {DType::F32, std::move(shape)});
  };
  const auto linear = [&](TensorId x, int64_t out, const std::string& name) {
    return g.op(OpKind::Linear, LinearAttrs{}, {x, weight(name + ".w", {out, g.shape(x).back()})},
                name);
  };
  const TensorId x = g.input("x", {DType::F32, {4, 8}});
  const TensorId a = linear(x, 8, "a"), b = linear(x, 8, "b");
  const TensorId sum = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {a, b}, "sum");
  const TensorId residual = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {sum, x}, "residual");
  const TensorId normed =
      g.op(OpKind::LayerNorm, LayerNormAttrs{1},
           {residual, weight("norm.scale", {8}), weight("norm.bias", {8})}, "norm");
  g.attach_cross_entropy(linear(normed, 3, "out"));
  return g.finish();
}

const Op& named(const Graph& graph, const std::string& name) {
  return *std::find_if(graph.ops.begin(), graph.ops.end(),
                       [&](const Op& op) { return op.name == name; });
}

DType output_type(const Graph& graph, const std::string& name) {
  return graph[named(graph, name).outputs[0]].type.dtype;
}

TEST(Autocast, ProductsAreNarrowAndNormsAreWide) {
  const Graph graph = autocast(network(), DType::F16);
  check_graph(graph);
  EXPECT_EQ(output_type(graph, "a"), DType::F16);
  EXPECT_EQ(output_type(graph, "sum"), DType::F16);
  EXPECT_EQ(output_type(graph, "residual"), DType::F32);  // the widest of both
  EXPECT_EQ(output_type(graph, "norm"), DType::F32);
  EXPECT_EQ(output_type(graph, "out"), DType::F16);
  for (const Tensor& tensor : graph.tensors)
    EXPECT_TRUE(tensor.role != TensorRole::Weight || tensor.type.dtype == DType::F32)
        << tensor.name;
  EXPECT_EQ(graph[graph.loss].type.dtype, DType::F32);
}

// Saved bytes, with b = 4 rows: x twice in 16 bits for the two products (2 x 4 x 8 x 2), the input
// of the norm in fp32 (4 x 8 x 4) and its statistics (2 x 4 x 4), its output in 16 bits
// (4 x 8 x 2), weights in 16 bits for the gradient of what is not data (3 x 8 x 2), logits in fp32
// (4 x 3 x 4), the logarithms of their sums (4 x 4), labels (4 x 8), and the number that counts
// (4).
TEST(Autocast, EachReaderKeepsItsOwnCopy) {
  const TrainingGraph training = differentiate(autocast(network(), DType::BF16));
  int64_t copies = 0, wide = 0, narrow_weights = 0;
  for (const SavedTensor& saved : training.saved) {
    const Tensor& tensor = training.graph[saved.tensor];
    if (tensor.name == "x.cast") copies += saved.bytes.value;
    if (tensor.name == "out.w.cast") narrow_weights += saved.bytes.value;
    if (tensor.type.dtype == DType::F32 && tensor.type.shape == Shape{4, 8})
      wide += saved.bytes.value;
  }
  EXPECT_EQ(copies, 2 * 4 * 8 * 2);
  EXPECT_EQ(narrow_weights, 3 * 8 * 2);
  EXPECT_EQ(wide, 4 * 8 * 4);
  // Gradients of weights end up in fp32.
  for (size_t t = 0; t < training.graph.tensors.size(); ++t)
    EXPECT_TRUE(training.graph.tensors[t].role != TensorRole::Weight ||
                training.graph[training.gradient_of[t]].type.dtype == DType::F32);
}

TEST(Autocast, LossesOfNarrowPredictionsGetACopy) {
  const Graph narrow = with_dtype(network(), DType::BF16);
  const Graph graph = with_fp32_losses(narrow);
  check_graph(graph);
  EXPECT_EQ(graph.ops.size(), narrow.ops.size() + 1);
  for (const Op& op : graph.ops)
    EXPECT_TRUE(op.kind != OpKind::CrossEntropy || graph[op.inputs[0]].type.dtype == DType::F32);
  // Where predictions are fp32 there is nothing to do.
  EXPECT_EQ(with_fp32_losses(network()).ops.size(), network().ops.size());
}

}  // namespace
}  // namespace windlass
