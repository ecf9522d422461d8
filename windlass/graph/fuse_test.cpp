#include "windlass/graph/fuse.h"

#include <cmath>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/reference/interpret.h"
#include "windlass/graph/simplify.h"

namespace windlass {
namespace {

// Builds graphs the way exporters spell things.
struct Net {
  GraphBuilder g{"net"};

  TensorId input(const std::string& name, Shape shape) {
    return g.input(name, {DType::F32, shape});
  }
  TensorId weight(const std::string& name, Shape shape) {
    return g.weight(name, {DType::F32, shape});
  }
  TensorId binary(BinaryFn fn, TensorId a, TensorId b) {
    return g.op(OpKind::Binary, BinaryAttrs{fn}, {a, b}, "b" + std::to_string(next++));
  }
  TensorId scalar(BinaryFn fn, TensorId a, double c) { return binary(fn, a, g.scalar(c)); }
  TensorId unary(UnaryFn fn, TensorId x) {
    return g.op(OpKind::Unary, UnaryAttrs{fn, 0, 0}, {x}, "u" + std::to_string(next++));
  }
  TensorId mean(TensorId x, int64_t axis) {
    return g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {axis}, true}, {x},
                "m" + std::to_string(next++));
  }
  TensorId matmul(TensorId a, TensorId b) {
    return g.op(OpKind::MatMul, MatMulAttrs{}, {a, b}, "p" + std::to_string(next++));
  }
  TensorId transpose(TensorId x, Ints order) {
    return g.op(OpKind::Transpose, TransposeAttrs{std::move(order)}, {x},
                "t" + std::to_string(next++));
  }
  Graph finish(TensorId y) {
    g.set_output(y);
    g.attach_mean_squared_error(y);
    return g.finish();
  }
  int next = 0;
};

// Output values with sources drawn by name, so that they survive rewriting.
std::vector<double> run(const Graph& graph) {
  std::vector<Array> values(graph.tensors.size());
  for (size_t t = 0; t < values.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.producer.valid()) continue;
    values[t] = Array(tensor.type.shape);
    if (tensor.constant >= 0) {
      values[t].values = graph.constants[static_cast<size_t>(tensor.constant)].values;
      continue;
    }
    Rng rng(std::hash<std::string>()(tensor.name));
    for (double& v : values[t].values) v = rng.uniform(-1, 1);
  }
  for (const Op& op : graph.ops) {
    std::vector<const Array*> inputs;
    for (TensorId id : op.inputs) inputs.push_back(id.valid() ? &values[id.index()] : nullptr);
    ForwardResult result = interpret_forward(signature_of(graph, op), inputs);
    for (size_t k = 0; k < op.outputs.size(); ++k)
      values[op.outputs[k].index()] = std::move(result.outputs[k]);
  }
  return values[graph.outputs[0].index()].values;
}

int count(const Graph& graph, OpKind kind) {
  int result = 0;
  for (const Op& op : graph.ops) result += op.kind == kind;
  return result;
}

// Simplifies and fuses, and requires that the function stays the same.
Graph fused(Graph graph) {
  const std::vector<double> before = run(graph);
  simplify(graph);
  fuse(graph);
  check_graph(graph);
  const std::vector<double> after = run(graph);
  EXPECT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-6) << i;
  return graph;
}

TEST(Fuse, LayerNormWithScaleAndBias) {
  Net n;
  const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {2, 3, 8}), n.weight("in", {8}));
  const TensorId d = n.binary(BinaryFn::Sub, x, n.mean(x, 2));
  const TensorId variance = n.mean(n.scalar(BinaryFn::Pow, d, 2), 2);
  const TensorId root = n.unary(UnaryFn::Sqrt, n.scalar(BinaryFn::Add, variance, 1e-5));
  TensorId y = n.binary(BinaryFn::Mul, n.binary(BinaryFn::Div, d, root), n.weight("scale", {8}));
  y = n.binary(BinaryFn::Add, y, n.weight("bias", {8}));
  const Graph graph = fused(n.finish(y));
  EXPECT_EQ(count(graph, OpKind::LayerNorm), 1);
  EXPECT_EQ(count(graph, OpKind::Reduce), 0);
}

TEST(Fuse, RmsNorm) {
  Net n;
  const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {2, 3, 8}), n.weight("in", {8}));
  const TensorId square = n.mean(n.scalar(BinaryFn::Pow, x, 2), 2);
  const TensorId root = n.unary(UnaryFn::Sqrt, n.scalar(BinaryFn::Add, square, 1e-6));
  const TensorId inverse = n.binary(BinaryFn::Div, n.g.scalar(1), root);
  const TensorId y =
      n.binary(BinaryFn::Mul, n.weight("scale", {8}), n.binary(BinaryFn::Mul, x, inverse));
  const Graph graph = fused(n.finish(y));
  EXPECT_EQ(count(graph, OpKind::RmsNorm), 1);
}

TEST(Fuse, GeluInBothSpellings) {
  for (const bool tanh : {false, true}) {
    Net n;
    const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {4, 8}), n.weight("in", {8}));
    TensorId gate;
    if (tanh) {
      const TensorId cube = n.scalar(BinaryFn::Mul, n.scalar(BinaryFn::Pow, x, 3), 0.044715);
      const TensorId inner = n.scalar(BinaryFn::Mul, n.binary(BinaryFn::Add, x, cube),
                                      std::sqrt(2 / std::numbers::pi));
      gate = n.scalar(BinaryFn::Add, n.unary(UnaryFn::Tanh, inner), 1);
    } else {
      gate = n.scalar(BinaryFn::Add,
                      n.unary(UnaryFn::Erf, n.scalar(BinaryFn::Div, x, std::numbers::sqrt2)), 1);
    }
    const TensorId y = n.scalar(BinaryFn::Mul, n.binary(BinaryFn::Mul, x, gate), 0.5);
    const Graph graph = fused(n.finish(y));
    ASSERT_EQ(count(graph, OpKind::Unary), 1);
    for (const Op& op : graph.ops) {
      if (op.kind != OpKind::Unary) continue;
      EXPECT_EQ(std::get<UnaryAttrs>(op.attrs).fn, tanh ? UnaryFn::GeluTanh : UnaryFn::Gelu);
    }
  }
}

TEST(Fuse, SiluOnlyWhereTheGateIsOfTheSameTensor) {
  Net n;
  const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {4, 8}), n.weight("in", {8}));
  const TensorId silu = n.binary(BinaryFn::Mul, x, n.unary(UnaryFn::Sigmoid, x));
  const TensorId other = n.binary(BinaryFn::Mul, silu, n.unary(UnaryFn::Sigmoid, x));
  const Graph graph = fused(n.finish(other));
  EXPECT_EQ(count(graph, OpKind::Unary), 2);  // one SiLU, one sigmoid
}

// Where the sigmoid of large logits rounds to 1, log(1 - sigmoid) would be minus infinity.
TEST(Fuse, LogarithmsOfSigmoidsStayFinite) {
  for (const bool rest : {false, true}) {
    Net net;
    const TensorId x = net.scalar(BinaryFn::Mul, net.input("x", {2, 8}), 100);
    const TensorId s = net.unary(UnaryFn::Sigmoid, x);
    const TensorId p = rest ? net.binary(BinaryFn::Sub, net.g.scalar(1), s) : s;
    Graph graph = net.finish(net.unary(UnaryFn::Log, p));
    simplify(graph);
    EXPECT_EQ(fuse(graph).activations, 1);
    EXPECT_EQ(count(graph, OpKind::Unary), rest ? 3 : 4);  // 100 x, negated twice, softplus
    for (double v : run(graph)) EXPECT_TRUE(std::isfinite(v)) << v;
  }
}

TEST(Fuse, LengthsOfVectors) {
  for (const bool square : {false, true}) {
    Net n;
    const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {4, 8}), n.weight("in", {8}));
    const TensorId squares = square ? n.unary(UnaryFn::Square, x) : n.binary(BinaryFn::Mul, x, x);
    const TensorId sum =
        n.g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, {1}, false}, {squares}, "sum");
    const Graph graph = fused(n.finish(n.unary(UnaryFn::Sqrt, sum)));
    ASSERT_EQ(count(graph, OpKind::Reduce), 1);
    EXPECT_EQ(count(graph, OpKind::Unary), 0);
    for (const Op& op : graph.ops) {
      if (op.kind != OpKind::Reduce) continue;
      EXPECT_EQ(std::get<ReduceAttrs>(op.attrs).fn, ReduceFn::L2);
    }
  }
}

TEST(Fuse, LinearFromTransposedWeightAndBias) {
  Net n;
  const TensorId x = n.input("x", {2, 3, 8});
  const TensorId product = n.matmul(x, n.transpose(n.weight("w", {5, 8}), {1, 0}));
  const Graph graph = fused(n.finish(n.binary(BinaryFn::Add, n.weight("b", {5}), product)));
  ASSERT_EQ(count(graph, OpKind::Linear), 1);
  EXPECT_EQ(count(graph, OpKind::Transpose), 0);
  EXPECT_EQ(count(graph, OpKind::Binary), 0);
}

struct AttentionCase {
  bool flat = false;  // three dimensions instead of four
  bool scale_query = false;
  bool added_mask = false;
  bool causal = false;
  int64_t groups = 2;    // key heads, of 2 query heads
  bool windows = false;  // another mask for each of two windows
};

// softmax(q k' / sqrt d + mask) v as exporters write it.
TensorId attention(Net& n, const AttentionCase& c, TensorId* probabilities = nullptr) {
  const int64_t s = 5;
  const Shape wide = c.flat ? Shape{4, s, 8} : Shape{2, 2, s, 8};
  const Shape narrow = c.flat ? wide : Shape{2, c.groups, s, 8};
  const auto operand = [&](const std::string& name, const Shape& shape) {
    return n.binary(BinaryFn::Mul, n.input(name, shape), n.weight(name + ".w", {8}));
  };
  const auto repeat = [&](TensorId x) {
    if (c.flat || c.groups == 2) return x;
    const TensorId split = n.g.op(OpKind::Reshape, ShapeAttrs{{2, 1, 1, s, 8}}, {x}, "split");
    const TensorId expanded =
        n.g.op(OpKind::Expand, ShapeAttrs{{2, 1, 2, s, 8}}, {split}, "expand");
    return n.g.op(OpKind::Reshape, ShapeAttrs{{2, 2, s, 8}}, {expanded}, "merge");
  };
  TensorId q = operand("q", wide);
  const TensorId k = repeat(operand("k", narrow)), v = repeat(operand("v", narrow));
  if (c.scale_query) q = n.scalar(BinaryFn::Div, q, std::sqrt(8.0));
  TensorId scores = n.matmul(q, n.transpose(k, c.flat ? Ints{0, 2, 1} : Ints{0, 1, 3, 2}));
  if (!c.scale_query) scores = n.scalar(BinaryFn::Div, scores, std::sqrt(8.0));
  if (c.added_mask) scores = n.binary(BinaryFn::Add, scores, n.input("mask", {s, s}));
  if (c.windows) {
    const TensorId seen_wide =
        n.g.op(OpKind::Reshape, ShapeAttrs{{1, 2, 2, s, s}}, {scores}, "wide");
    const TensorId sum =
        n.binary(BinaryFn::Add, seen_wide, n.input("window_mask", {1, 2, 1, s, s}));
    scores = n.g.op(OpKind::Reshape, ShapeAttrs{{2, 2, s, s}}, {sum}, "narrow");
  }
  if (c.causal) {
    std::vector<double> seen;
    for (int64_t i = 0; i < s * s; ++i) seen.push_back(i % s <= i / s ? 1 : 0);
    const TensorId condition = n.g.constant("tril", {DType::Bool, {s, s}}, seen);
    scores = n.g.op(OpKind::Where, NoAttrs{}, {condition, scores, n.g.scalar(-HUGE_VAL)}, "masked");
  }
  const int64_t last = c.flat ? 2 : 3;
  const TensorId p = n.g.op(OpKind::Softmax, SoftmaxAttrs{last, false}, {scores}, "softmax");
  if (probabilities) *probabilities = p;
  return n.matmul(p, v);
}

TEST(Fuse, AttentionInAllSpellings) {
  for (const AttentionCase c :
       {AttentionCase{}, AttentionCase{.flat = true}, AttentionCase{.scale_query = true},
        AttentionCase{.added_mask = true}, AttentionCase{.causal = true},
        AttentionCase{.flat = true, .added_mask = true}, AttentionCase{.groups = 1},
        AttentionCase{.windows = true},
        AttentionCase{.scale_query = true, .added_mask = true, .windows = true},
        AttentionCase{.scale_query = true, .added_mask = true, .causal = true, .groups = 1}}) {
    Net n;
    const Graph graph = fused(n.finish(attention(n, c)));
    ASSERT_EQ(count(graph, OpKind::Attention), 1);
    EXPECT_EQ(count(graph, OpKind::Softmax), 0);
    EXPECT_EQ(count(graph, OpKind::Expand), 0);
    for (const Op& op : graph.ops) {
      if (op.kind != OpKind::Attention) continue;
      const auto& attrs = std::get<AttentionAttrs>(op.attrs);
      EXPECT_EQ(attrs.causal, c.causal);
      EXPECT_NEAR(attrs.scale, 1 / std::sqrt(8.0), 1e-12);
      EXPECT_EQ(op.inputs.size() == 4, c.added_mask || c.windows);
      EXPECT_EQ(graph[op.inputs[1]].type.shape[1], c.flat ? 1 : c.groups);
    }
  }
}

TEST(Fuse, AttentionCanBeTakenApart) {
  for (const AttentionCase c :
       {AttentionCase{}, AttentionCase{.causal = true},
        AttentionCase{.added_mask = true, .causal = true}, AttentionCase{.groups = 1}}) {
    Net n;
    Graph graph = fused(n.finish(attention(n, c)));
    const std::vector<double> before = run(graph);
    EXPECT_EQ(unfuse_attention(graph), 1);
    check_graph(graph);
    EXPECT_EQ(count(graph, OpKind::Attention), 0);
    const std::vector<double> after = run(graph);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-9) << i;
  }
}

TEST(Fuse, ActivationsAndNormsCanBeTakenApart) {
  Net n;
  const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {4, 8}), n.weight("in", {8}));
  const TensorId gelu = n.unary(UnaryFn::GeluTanh, x);
  const TensorId norm =
      n.g.op(OpKind::RmsNorm, LayerNormAttrs{1, 1e-5, 0.5}, {gelu, n.weight("scale", {8})}, "norm");
  Graph graph = n.finish(norm);
  const std::vector<double> before = run(graph);
  EXPECT_EQ(unfuse_tanh_gelu(graph), 1);
  EXPECT_EQ(unfuse_rms_norms(graph), 1);
  check_graph(graph);
  EXPECT_EQ(count(graph, OpKind::RmsNorm), 0);
  const std::vector<double> after = run(graph);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-9) << i;
}

// A file may leave the scale out; the norm's result is then that of a product or of a conversion.
TEST(Fuse, NormsWithoutAScaleCanBeTakenApart) {
  for (const DType dtype : {DType::F32, DType::F16}) {
    Net n;
    const TensorId x = n.binary(BinaryFn::Mul, n.input("x", {4, 8}), n.weight("in", {8}));
    const TensorId cast = n.g.op(OpKind::Cast, CastAttrs{dtype}, {x}, "cast");
    const TensorId norm = n.g.op(OpKind::RmsNorm, LayerNormAttrs{1, 1e-5, 0}, {cast}, "norm");
    Graph graph = n.finish(n.g.op(OpKind::Cast, CastAttrs{DType::F32}, {norm}, "back"));
    const std::vector<double> before = run(graph);
    EXPECT_EQ(unfuse_rms_norms(graph), 1);
    check_graph(graph);
    const std::vector<double> after = run(graph);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-3) << i;
  }
}

TEST(Fuse, AttentionWhoseProbabilitiesAreReadStays) {
  Net n;
  TensorId probabilities;
  const TensorId y = attention(n, {}, &probabilities);
  n.g.set_output(probabilities);
  n.g.attach_mean_squared_error(y);
  n.g.set_output(y);
  Graph graph = n.g.finish();
  simplify(graph);
  EXPECT_EQ(fuse_attention(graph), 0);
}

// A finite mask hides less than everything: queries that see no key get a mean of the values, not
// NaN.
TEST(Fuse, QueriesThatSeeNothingStayFinite) {
  for (const bool chosen : {true, false}) {
    Net n;
    const int64_t s = 4, t = 2;
    const TensorId q = n.binary(BinaryFn::Mul, n.input("q", {1, 1, s, 8}), n.weight("w", {8}));
    const TensorId k = n.input("k", {1, 1, t, 8}), v = n.input("v", {1, 1, t, 8});
    TensorId scores = n.matmul(q, n.transpose(k, {0, 1, 3, 2}));
    // Query i of 4 sees key j of 2 if j <= i - 2: the first two see nothing.
    std::vector<double> shown, added;
    for (int64_t i = 0; i < s * t; ++i) shown.push_back(i % t <= i / t + t - s ? 1 : 0);
    for (double yes : shown) added.push_back(yes != 0 ? 0 : -1e9);
    if (chosen) {
      const TensorId condition = n.g.constant("shown", {DType::Bool, {s, t}}, shown);
      scores = n.g.op(OpKind::Where, NoAttrs{}, {condition, scores, n.g.scalar(-1e9)}, "masked");
    } else {
      const TensorId mask = n.g.constant("added", {DType::F32, {s, t}}, added);
      scores = n.binary(BinaryFn::Add, scores, mask);
    }
    const TensorId p = n.g.op(OpKind::Softmax, SoftmaxAttrs{3, false}, {scores}, "softmax");
    Graph graph = n.finish(n.matmul(p, v));
    simplify(graph);
    ASSERT_EQ(fuse_attention(graph), 1);
    for (double value : run(graph)) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Simplify, RemovesCopiesAndMergesChains) {
  Net n;
  TensorId x = n.binary(BinaryFn::Mul, n.input("x", {2, 3, 4}), n.weight("in", {4}));
  x = n.transpose(n.transpose(x, {0, 2, 1}), {0, 2, 1});
  x = n.g.op(OpKind::Reshape, ShapeAttrs{{6, 4}}, {x}, "r1");
  x = n.g.op(OpKind::Reshape, ShapeAttrs{{2, 3, 4}}, {x}, "r2");
  x = n.scalar(BinaryFn::Add, n.scalar(BinaryFn::Mul, x, 2), 3);
  x = n.scalar(BinaryFn::Sub, x, 3);
  Graph graph = n.finish(x);
  const std::vector<double> before = run(graph);
  simplify(graph);
  // The product, one scaling, the loss.
  EXPECT_EQ(graph.ops.size(), 3u);
  const std::vector<double> after = run(graph);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 1e-12);
}

}  // namespace
}  // namespace windlass
