#include "windlass/graph/batch.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"

namespace windlass {
namespace {

// Samples [4, 3] times a weight [3], reduced over everything.
Graph reduced(ReduceFn fn) {
  GraphBuilder g("reduced");
  const TensorId x = g.input("x", {DType::F32, {4, 3}});
  const TensorId w = g.weight("w", {DType::F32, {3}});
  const TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "y");
  g.set_loss(g.op(OpKind::Reduce, ReduceAttrs{fn, {0, 1}, false}, {y}, "total"));
  return g.finish();
}

// The loss of a step is the mean over its micro-batches: that of a mean is the mean, those of other
// reductions are something else.
TEST(Batch, OnlyMeansOverSamplesCanBeCut) {
  EXPECT_EQ(find_batch(reduced(ReduceFn::Mean)).obstacle, "");
  for (ReduceFn fn : {ReduceFn::Sum, ReduceFn::Max, ReduceFn::Prod, ReduceFn::L1, ReduceFn::L2,
                      ReduceFn::SumSquare, ReduceFn::LogSumExp}) {
    const Graph graph = reduced(fn);
    EXPECT_NE(find_batch(graph).obstacle, "") << enum_name(fn);
    EXPECT_THROW(cut_batch(graph, find_batch(graph), 2), Error) << enum_name(fn);
  }
}

// Even samples, then odd ones: halves of the batch would come out in another order, beside other
// labels.
TEST(Batch, SamplesThatChangePlacesKeepTheBatchWhole) {
  const auto obstacle = [](const std::vector<int64_t>& starts, int64_t size, int64_t step) {
    GraphBuilder g("order");
    const TensorId x = g.input("x", {DType::F32, {4, 3}});
    const TensorId w = g.weight("w", {DType::F32, {3}});
    TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "y");
    std::vector<TensorId> parts;
    for (int64_t start : starts)
      parts.push_back(g.op(OpKind::Slice, SliceAttrs{{start, 0}, {step, 1}, {size, 3}}, {y},
                           "part" + std::to_string(start)));
    if (parts.size() > 1)
      y = g.op(OpKind::Concat, AxisAttrs{0}, parts, "joined");
    else
      y = parts[0];
    g.attach_mean_squared_error(y);
    return find_batch(g.finish()).obstacle;
  };
  EXPECT_NE(obstacle({0, 1}, 2, 2), "");
  EXPECT_NE(obstacle({2, 0}, 2, 1), "");
  EXPECT_NE(obstacle({0}, 2, 1), "");
  EXPECT_EQ(obstacle({0}, 4, 1), "");
}

// How many labels are left out is known before a step, unless the network computes the labels and
// may make one that is.
TEST(Batch, LabelsThatAreLeftOut) {
  const auto obstacle = [](int64_t ignored, bool computed, UnaryFn fn = UnaryFn::Identity) {
    GraphBuilder g("classes");
    const TensorId x = g.input("x", {DType::F32, {4, 3}});
    const TensorId w = g.weight("w", {DType::F32, {3}});
    const TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "y");
    TensorId labels;
    if (computed) {
      labels = g.op(OpKind::ArgMax, AxisAttrs{1}, {y}, "greatest");
      labels = g.op(OpKind::Reshape, ShapeAttrs{{4}}, {labels}, "labels");
      if (fn != UnaryFn::Identity)
        labels = g.op(OpKind::Unary, UnaryAttrs{.fn = fn}, {labels}, "changed");
    } else {
      labels = g.label("labels", {DType::I64, {4}});
    }
    g.set_loss(g.op(OpKind::CrossEntropy, CrossEntropyAttrs{1, ignored}, {y, labels}, "loss"));
    return find_batch(g.finish()).obstacle;
  };
  EXPECT_EQ(obstacle(-100, false), "");
  EXPECT_EQ(obstacle(2, false), "");
  EXPECT_EQ(obstacle(-100, true), "");
  EXPECT_NE(obstacle(2, true), "");
  EXPECT_NE(obstacle(-1, true, UnaryFn::Neg), "");
}

// States [1, samples, 2] of a recurrent layer: the batch is not their first axis.
TEST(Batch, ConstantsAreCutAlongAnyAxis) {
  const auto cut = [](std::vector<double> states) {
    GraphBuilder g("states", {.fold_limit = 0});
    const TensorId x = g.input("x", {DType::F32, {4, 2}});
    const TensorId w = g.weight("w", {DType::F32, {2}});
    const TensorId row = g.op(OpKind::Reshape, ShapeAttrs{{1, 4, 2}}, {x}, "row");
    const TensorId c = g.constant("c", {DType::F32, {1, 4, 2}}, std::move(states));
    TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {row, c}, "y");
    y = g.op(OpKind::Reshape, ShapeAttrs{{4, 2}}, {y}, "back");
    y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {y, w}, "z");
    g.attach_mean_squared_error(y);
    const Graph graph = g.finish();
    return cut_batch(graph, find_batch(graph), 2);
  };
  const Graph half = cut({1, 2, 1, 2, 1, 2, 1, 2});
  for (const Tensor& tensor : half.tensors)
    if (tensor.name == "c") {
      EXPECT_EQ(tensor.type.shape, (Shape{1, 2, 2}));
      EXPECT_EQ(half.constants[static_cast<size_t>(tensor.constant)].values,
                (std::vector<double>{1, 2, 1, 2}));
    }
  EXPECT_THROW(cut({1, 2, 1, 2, 1, 2, 3, 2}), Error);
}

}  // namespace
}  // namespace windlass
