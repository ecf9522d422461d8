#include "windlass/graph/reference/mean_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/graph/builder.h"
#include "windlass/graph/from_data.h"

namespace windlass {
namespace {

using testing::ElementsAre;

// Logits [2, 2, 3] from x [2, 2], and labels [2, 2] from ids [2, 3]: the last two of each row.
Graph shifted_labels(int64_t ignored) {
  GraphBuilder g("shifted");
  const TensorId x = g.input("x", {DType::F32, {2, 2, 3}});
  const TensorId ids = g.input("ids", {DType::I64, {2, 3}});
  const TensorId w = g.weight("w", {DType::F32, {3}});
  const TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "y");
  const TensorId next = g.op(OpKind::Slice, SliceAttrs{{0, 1}, {1, 1}, {2, 2}}, {ids}, "next");
  g.set_loss(g.op(OpKind::CrossEntropy, CrossEntropyAttrs{2, ignored}, {y, next}, "loss"));
  return g.finish();
}

// Of the labels {1, 2, 9, 9} and {9, 9, 9, 0}, without the first ids of each row, 9 is left out:
// two of the first micro-batch count and one of the second, 3 / 2 for each. Without a second one,
// it is its own two.
TEST(MeanCounts, AreSharedByMicroBatches) {
  const auto data = [](TensorId, int32_t m) {
    return m == 0 ? Array({2, 3}, {9, 1, 2, 0, 9, 9}) : Array({2, 3}, {0, 9, 9, 1, 9, 0});
  };
  const Graph graph = shifted_labels(9);
  EXPECT_THAT(mean_counts({&graph}, {}, 2, data), ElementsAre(-1, -1, 1.5));
  EXPECT_THAT(mean_counts({&graph}, {}, 1, data), ElementsAre(-1, -1, 2));
}

// The mean of x over what a mask leaves: of 4 and 0 elements in two micro-batches.
TEST(MeanCounts, DivisorsAreThoseOfTheBatch) {
  GraphBuilder g("masked");
  const TensorId x = g.input("x", {DType::F32, {4, 2}});
  const TensorId mask = g.input("mask", {DType::F32, {4, 2}});
  const TensorId w = g.weight("w", {DType::F32, {2}});
  const auto product = [&](TensorId a, TensorId b, const char* name) {
    return g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {a, b}, name);
  };
  const auto sum = [&](TensorId a, const char* name) {
    return g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, {0, 1}, false}, {a}, name);
  };
  const TensorId above = sum(product(product(x, w, "y"), mask, "kept"), "above");
  const TensorId below =
      g.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Affine, .alpha = 1, .beta = 2},
           {sum(mask, "left")}, "below");
  g.set_loss(g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Div}, {above, below}, "loss"));
  const Graph graph = g.finish();
  const BatchAxes batch = find_batch(graph);
  EXPECT_EQ(batch.obstacle, "");
  const OpId divisor = graph[below].producer;
  EXPECT_THAT(batch.divisors, ElementsAre(divisor));
  const auto data = [](TensorId, int32_t m) { return Array({2, 2}, m == 0 ? 1 : 0); };
  // (4 + 0 + 2) / 2, where each micro-batch alone would divide by 6 and by 2.
  const Graph half = cut_batch(graph, batch, 2);
  EXPECT_EQ(mean_counts({&half}, batch, 2, data)[divisor.index()], 3);
}

TEST(FromData, NoWeightHasAPart) {
  const Graph graph = shifted_labels(-100);
  const Op& loss = graph.ops[2];
  EXPECT_THAT(*ops_from_data(graph, loss.inputs[1]), ElementsAre(OpId(size_t{1})));
  EXPECT_EQ(ops_from_data(graph, loss.inputs[0]), std::nullopt);
}

}  // namespace
}  // namespace windlass
