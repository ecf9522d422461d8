#include "windlass/graph/blocks.h"

#include <gtest/gtest.h>

#include "windlass/graph/builder.h"

namespace windlass {
namespace {

TensorId linear(GraphBuilder& g, TensorId x, int64_t out, const std::string& name) {
  return g.op(OpKind::Linear, LinearAttrs{},
              {x, g.weight(name + ".w", {DType::F32, {out, g.shape(x).back()}})}, name);
}
TensorId relu(GraphBuilder& g, TensorId x, const std::string& name) {
  return g.op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu, 0, 0}, {x}, name);
}
TensorId add(GraphBuilder& g, TensorId a, TensorId b, const std::string& name) {
  return g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {a, b}, name);
}

TEST(Blocks, FindsRepeatedResidualBlocks) {
  GraphBuilder g("net");
  TensorId x = linear(g, g.input("x", {DType::F32, {4, 6}}), 8, "in");
  for (int i = 0; i < 5; ++i) {
    const std::string name = "block" + std::to_string(i);
    x = add(g, x, linear(g, relu(g, linear(g, x, 16, name + ".a"), name + ".r"), 8, name + ".b"),
            name + ".add");
  }
  g.attach_cross_entropy(linear(g, x, 3, "out"));
  const Graph graph = g.finish();
  EXPECT_EQ(format_blocks(find_blocks(graph)), "1 op, 5 x [4 ops], 2 ops");
}

TEST(Blocks, RepeatsCanHaveSeveralPieces) {
  GraphBuilder g("net");
  TensorId x = linear(g, g.input("x", {DType::F32, {4, 8}}), 8, "in");
  for (int i = 0; i < 6; ++i) {
    const std::string name = "block" + std::to_string(i);
    x = relu(g, linear(g, x, 16, name + ".a"), name + ".r");
    x = linear(g, x, 8, name + ".b");
  }
  g.attach_cross_entropy(linear(g, x, 3, "out"));
  EXPECT_EQ(format_blocks(find_blocks(g.finish())), "1 op, 6 x [3 ops], 2 ops");
}

TEST(Blocks, SideInputsDoNotHinderCuts) {
  GraphBuilder g("net");
  const TensorId side = linear(g, g.input("memory", {DType::F32, {4, 8}}), 8, "memory_in");
  TensorId x = linear(g, g.input("x", {DType::F32, {4, 8}}), 8, "in");
  for (int i = 0; i < 6; ++i) {
    const std::string name = "block" + std::to_string(i);
    x = add(g, relu(g, linear(g, x, 8, name + ".a"), name + ".r"), side, name + ".side");
  }
  g.attach_cross_entropy(linear(g, x, 3, "out"));
  const auto blocks = find_blocks(g.finish());
  int64_t most = 0;
  for (const Block& block : blocks) most = std::max(most, block.repetitions);
  EXPECT_EQ(most, 6) << format_blocks(blocks);
}

TEST(Blocks, CoverEveryOpOnce) {
  GraphBuilder g("net");
  TensorId x = linear(g, g.input("x", {DType::F32, {4, 8}}), 8, "in");
  for (int i = 0; i < 4; ++i) {
    const int64_t width = i < 2 ? 8 : 12;
    x = relu(g, linear(g, x, width, "a" + std::to_string(i)), "r" + std::to_string(i));
  }
  g.attach_cross_entropy(x);
  const Graph graph = g.finish();
  size_t next = 0;
  for (const Block& block : find_blocks(graph)) {
    EXPECT_EQ(block.first_op, next);
    next += block.ops * static_cast<size_t>(block.repetitions);
  }
  EXPECT_EQ(next, graph.ops.size());
}

TEST(Blocks, DifferentShapesAreDifferentStructure) {
  GraphBuilder g("net");
  TensorId x = linear(g, g.input("x", {DType::F32, {4, 8}}), 8, "in");
  x = linear(g, x, 8, "a");
  x = linear(g, x, 8, "b");
  x = linear(g, x, 12, "c");
  g.attach_cross_entropy(x);
  const Graph graph = g.finish();
  EXPECT_EQ(structure_hash(graph, 1, 2), structure_hash(graph, 2, 3));
  EXPECT_NE(structure_hash(graph, 2, 3), structure_hash(graph, 3, 4));
}

}  // namespace
}  // namespace windlass
