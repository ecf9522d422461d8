#include "windlass/graph/differentiate.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"

namespace windlass {
namespace {

struct LayerSizes {
  int64_t s, b, h, a;  // sequence, micro-batch, hidden, heads
};

// One transformer layer with the ops that Korthikanti et al. (arXiv 2205.05198, section 4.1)
// assume: layer norms, separate q, k, v products on one input, unfused attention with dropout on
// the probabilities, dropout after both halves, GELU with 4h. `x` is [b, s, h].
TensorId transformer_layer(GraphBuilder& g, TensorId x, const LayerSizes& n) {
  const DType dtype = g.type(x).dtype;
  const auto weight = [&](const std::string& name, Shape shape) {
    return g.weight(name, {dtype, std::move(shape)});
  };
  const auto norm = [&](TensorId in, const std::string& name) {
    return g.op(OpKind::LayerNorm, LayerNormAttrs{2, 1e-5, 0},
                {in, weight(name + ".w", {n.h}), weight(name + ".b", {n.h})}, name);
  };
  const auto linear = [&](TensorId in, int64_t out, const std::string& name) {
    return g.op(OpKind::Linear, LinearAttrs{},
                {in, weight(name + ".w", {out, g.shape(in).back()}), weight(name + ".b", {out})},
                name);
  };
  const auto dropout = [&](TensorId in, const std::string& name) {
    return g.op(OpKind::Dropout, DropoutAttrs{0.1}, {in}, name);
  };
  const auto add = [&](TensorId p, TensorId q, const std::string& name) {
    return g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {p, q}, name);
  };
  const auto heads = [&](TensorId in, const std::string& name) {
    const TensorId split =
        g.op(OpKind::Reshape, ShapeAttrs{{n.b, n.s, n.a, n.h / n.a}}, {in}, name + ".split");
    return g.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {split}, name + ".heads");
  };
  const TensorId normed = norm(x, "ln1");
  const TensorId q = heads(linear(normed, n.h, "q"), "q");
  const TensorId k = heads(linear(normed, n.h, "k"), "k");
  const TensorId v = heads(linear(normed, n.h, "v"), "v");
  TensorId scores = g.op(OpKind::MatMul, MatMulAttrs{false, true}, {q, k}, "scores");
  scores = g.op(OpKind::Unary, UnaryAttrs{UnaryFn::Affine, 0.125, 0}, {scores}, "scale");
  const TensorId probabilities = g.op(OpKind::Softmax, SoftmaxAttrs{3, false}, {scores}, "softmax");
  const TensorId kept = dropout(probabilities, "attention_dropout");
  const TensorId mixed = g.op(OpKind::MatMul, MatMulAttrs{}, {kept, v}, "mix");
  const TensorId moved = g.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {mixed}, "moved");
  const TensorId merged = g.op(OpKind::Reshape, ShapeAttrs{{n.b, n.s, n.h}}, {moved}, "merged");
  const TensorId half = add(x, dropout(linear(merged, n.h, "proj"), "drop1"), "residual1");
  TensorId y = linear(norm(half, "ln2"), 4 * n.h, "fc");
  y = g.op(OpKind::Unary, UnaryAttrs{UnaryFn::Gelu, 0, 0}, {y}, "gelu");
  return add(half, dropout(linear(y, n.h, "out"), "drop2"), "residual2");
}

Bytes saved_in_layers(const LayerSizes& n, int layers) {
  GraphBuilder g("transformer");
  // The input depends on a weight, so that its gradient is wanted as inside a deep network.
  TensorId x =
      g.op(OpKind::Embedding, NoAttrs{},
           {g.input("ids", {DType::I64, {n.b, n.s}}), g.weight("wte", {DType::F16, {11, n.h}})},
           "embed");
  for (int i = 0; i < layers; ++i) x = transformer_layer(g, x, n);
  g.attach_mean_squared_error(x);
  return totals_of(differentiate(g.finish())).saved;
}

// Per layer, in bytes at 2 bytes an element and masks of 1:
// clang-format off
//   attention  input of q, k, v 2sbh; q and k 4sbh; softmax output 2as^2b; its dropout mask as^2b;
//              dropout output 2as^2b; v 2sbh; input of the projection 2sbh; dropout mask sbh
//                                                                            = 11sbh + 5as^2b
//   MLP        input of fc 2sbh; input of GELU 8sbh; input of out 8sbh; dropout mask sbh = 19sbh
//   norms      input of each 2sbh                                                        =  4sbh
// clang-format on
// Together sbh (34 + 5as/h). The formula leaves out the statistics of the norms, which windlass
// counts: mean and deviation in fp32 for each of sb rows, two norms: 16sb.
TEST(Differentiate, TransformerLayerKeepsThePublishedBytes) {
  for (const LayerSizes n : {LayerSizes{16, 2, 32, 4}, LayerSizes{128, 3, 64, 8}}) {
    const int64_t formula = n.s * n.b * n.h * 34 + 5 * n.a * n.s * n.s * n.b;
    const int64_t statistics = 16 * n.s * n.b;
    const Bytes one = saved_in_layers(n, 1), three = saved_in_layers(n, 3);
    EXPECT_EQ((three - one).value, 2 * (formula + statistics));
  }
}

TEST(Differentiate, ReluKeepsItsOutputAndDropoutOneByteAnElement) {
  GraphBuilder g("net");
  const TensorId x = g.input("x", {DType::F32, {4, 8}});
  TensorId y =
      g.op(OpKind::Linear, LinearAttrs{}, {x, g.weight("w1", {DType::F32, {8, 8}})}, "fc1");
  y = g.op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu, 0, 0}, {y}, "relu");
  y = g.op(OpKind::Dropout, DropoutAttrs{0.5}, {y}, "dropout");
  y = g.op(OpKind::Linear, LinearAttrs{}, {y, g.weight("w2", {DType::F32, {3, 8}})}, "fc2");
  g.attach_cross_entropy(y);
  const TrainingGraph training = differentiate(g.finish());
  std::set<std::string> names;
  Bytes total;
  for (const SavedTensor& saved : training.saved) {
    names.insert(training.graph[saved.tensor].name);
    total += saved.bytes;
    EXPECT_FALSE(saved.consumers.empty());
  }
  EXPECT_EQ(names, (std::set<std::string>{"x", "relu", "dropout.aux0", "dropout", "fc2", "labels",
                                          "loss.aux0", "loss.aux1"}));
  // x, relu, dropout: 4*8*4 each; mask 4*8; logits 4*3*4; labels 4*8; statistics 4*4 and 4.
  EXPECT_EQ(total.value, 3 * 128 + 32 + 48 + 32 + 16 + 4);
}

TEST(Differentiate, FirstLayerNeedsNoInputGradient) {
  GraphBuilder g("net");
  const TensorId x = g.input("x", {DType::F32, {4, 8}});
  const TensorId y =
      g.op(OpKind::Linear, LinearAttrs{}, {x, g.weight("w", {DType::F32, {3, 8}})}, "fc");
  g.attach_cross_entropy(y);
  const TrainingTotals totals = totals_of(differentiate(g.finish()));
  EXPECT_EQ(totals.forward.multiply_adds, 4 * 8 * 3);
  EXPECT_EQ(totals.backward.multiply_adds, 4 * 8 * 3);
}

TEST(Differentiate, SharedWeightsAccumulate) {
  GraphBuilder g("net");
  const TensorId w = g.weight("w", {DType::F32, {8, 8}});
  TensorId y = g.input("x", {DType::F32, {4, 8}});
  for (int i = 0; i < 3; ++i)
    y = g.op(OpKind::Linear, LinearAttrs{}, {y, w}, "fc" + std::to_string(i));
  g.attach_mean_squared_error(y);
  const TrainingGraph training = differentiate(g.finish());
  int sums = 0, updates = 0;
  for (const Op& op : training.graph.ops) {
    sums += op.kind == OpKind::Accumulate;
    updates += op.kind == OpKind::Update;
  }
  EXPECT_EQ(sums, 2);
  EXPECT_EQ(updates, 1);
  EXPECT_NO_THROW(check_graph(training.graph));
}

TEST(Differentiate, OptimizerAndPrecisionDecideTheStateBytes) {
  const auto totals = [](DType dtype, OptimizerKind optimizer) {
    GraphBuilder g("net");
    const TensorId x = g.input("x", {dtype, {4, 8}});
    const TensorId y =
        g.op(OpKind::Linear, LinearAttrs{}, {x, g.weight("w", {dtype, {5, 8}})}, "fc");
    g.attach_mean_squared_error(y);
    return totals_of(differentiate(g.finish(), {.optimizer = optimizer}));
  };
  const int64_t n = 40;
  EXPECT_EQ(totals(DType::F32, OptimizerKind::Sgd).optimizer.value, 0);
  EXPECT_EQ(totals(DType::F32, OptimizerKind::Momentum).optimizer.value, 4 * n);
  EXPECT_EQ(totals(DType::F32, OptimizerKind::Adam).optimizer.value, 8 * n);
  // 16-bit: weight 2, gradient 2, master 4, two states 8: sixteen bytes a parameter.
  const TrainingTotals half = totals(DType::BF16, OptimizerKind::AdamW);
  EXPECT_EQ(half.weights.value, 2 * n);
  EXPECT_EQ(half.weight_gradients.value, 2 * n);
  EXPECT_EQ(half.optimizer.value, 12 * n);
}

TEST(Differentiate, FusedAttentionKeepsNoScores) {
  const auto saved = [](bool fused) {
    GraphBuilder g("net");
    const TensorId x = g.input("x", {DType::F32, {2, 4, 64, 8}});
    const TensorId w = g.weight("w", {DType::F32, {8}});
    const TensorId q = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "q");
    TensorId y;
    if (fused) {
      y = g.op(OpKind::Attention, AttentionAttrs{}, {q, x, x}, "attention");
    } else {
      const TensorId scores = g.op(OpKind::MatMul, MatMulAttrs{false, true}, {q, x}, "scores");
      const TensorId p = g.op(OpKind::Softmax, SoftmaxAttrs{3, false}, {scores}, "softmax");
      y = g.op(OpKind::MatMul, MatMulAttrs{}, {p, x}, "mix");
    }
    g.attach_mean_squared_error(y);
    const TrainingGraph training = differentiate(g.finish());
    return std::any_of(training.saved.begin(), training.saved.end(), [&](const SavedTensor& t) {
      return training.graph[t.tensor].type.shape == Shape{2, 4, 64, 64};
    });
  };
  EXPECT_FALSE(saved(true));
  EXPECT_TRUE(saved(false));
}

TEST(Differentiate, NothingToTrainIsAnInputError) {
  GraphBuilder g("net");
  const TensorId x = g.input("x", {DType::F32, {4, 8}});
  const TensorId w = g.weight("w", {DType::F32, {3, 8}}, false);
  g.attach_cross_entropy(g.op(OpKind::Linear, LinearAttrs{}, {x, w}, "fc"));
  const Graph graph = g.finish();
  EXPECT_THROW(differentiate(graph), Error);
  Graph without_loss = graph;
  without_loss.loss = {};
  EXPECT_THROW(differentiate(without_loss), Error);
}

}  // namespace
}  // namespace windlass
