#include "windlass/graph/micro_batch.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/dump.h"

namespace windlass {
namespace {

// Samples of 4 x 6 numbers: noise, dropout, a constant, a view that ends all axes but the samples',
// and the mean of the squares of what a weight makes of them.
Graph network(int64_t samples) {
  GraphBuilder g("network");
  const TensorId x = g.input("x", {DType::F32, {samples, 4, 6}});
  const TensorId shift = g.weight("shift", {DType::F32, {1, 4, 6}});
  const auto binary = [&](BinaryFn fn, TensorId a, TensorId b, const char* name) {
    return g.op(OpKind::Binary, BinaryAttrs{fn}, {a, b}, name);
  };
  TensorId y = binary(BinaryFn::Add, x, shift, "shifted");
  const std::vector<double> values(static_cast<size_t>(samples * 24), 0.5);
  const TensorId start = g.constant("start", {DType::F32, {samples, 4, 6}}, values);
  y = binary(BinaryFn::Mul, y, start, "halved");
  y = g.op(OpKind::Dropout, DropoutAttrs{0.3}, {y}, "dropout");
  y = g.op(OpKind::Reshape, ShapeAttrs{{samples, 24}}, {y}, "flat");
  const TensorId w = g.weight("w", {DType::F32, {3, 24}});
  g.attach_mean_squared_error(g.op(OpKind::Linear, LinearAttrs{}, {y, w}, "linear"));
  return g.finish();
}

OpId op_named(const TrainingGraph& training, const std::string& name) {
  for (size_t i = 0; i < training.forward_ops; ++i)
    if (training.graph.ops[i].name == name) return OpId(i);
  ADD_FAILURE() << name;
  return {};
}

TEST(MicroBatch, SizesDifferByOne) {
  // 7 = 3 + 2 + 2.
  const TrainingGraph training = cut_training(network(7), 3, {}).training;
  ASSERT_NE(training.unequal, nullptr);
  const TensorId x = training.graph.inputs[0];
  for (int32_t m = 0; m < 3; ++m) {
    const int64_t samples = m == 0 ? 3 : 2;
    EXPECT_EQ(samples_of(*training.unequal, m).size(), samples);
    EXPECT_EQ(training.of(m).graph[x].type.shape[0], samples);
  }
  EXPECT_EQ(samples_of(*training.unequal, 2).begin, 5);
  EXPECT_EQ(&training.of(-1), &training);
  EXPECT_EQ(graphs_of(training).size(), 3u);
  const size_t last = training.saved.size() - 1;
  EXPECT_EQ(saved_bytes(training, last, 3),
            training.saved[last].bytes + training.unequal->smaller.saved[last].bytes * 2);
  EXPECT_EQ(cut_training(network(6), 3, {}).training.unequal, nullptr);
}

// Where nothing becomes 1, the smaller step is the one that its network differentiates to.
TEST(MicroBatch, TheSmallerStepIsThatOfItsNetwork) {
  const TrainingGraph training = cut_training(network(7), 3, {}).training;
  const TrainingGraph own = differentiate(network(2));
  const TrainingGraph& smaller = training.unequal->smaller;
  EXPECT_EQ(dump_graph(smaller.graph), dump_graph(own.graph));
  ASSERT_EQ(smaller.saved.size(), own.saved.size());
  for (size_t s = 0; s < own.saved.size(); ++s)
    EXPECT_EQ(smaller.saved[s].bytes, own.saved[s].bytes);
  for (size_t c = 0; c < own.graph.constants.size(); ++c)
    EXPECT_EQ(smaller.graph.constants[c].values, own.graph.constants[c].values);
}

// A single sample has the ops and loops of two: differentiated by itself the shift would pass its
// gradient on, and the view would have other loops.
TEST(MicroBatch, OneSampleIsAPartOfTwo) {
  const TrainingGraph training = cut_training(network(3), 2, {}).training;
  const Graph& one = training.of(1).graph;
  ASSERT_EQ(one.ops.size(), training.graph.ops.size());
  EXPECT_NE(differentiate(network(1)).graph.ops.size(), one.ops.size());
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const LoopNest two = loops_of(training.graph, training.graph.ops[i]);
    const LoopNest single = loops_of(one, one.ops[i]);
    ASSERT_EQ(two.loops.size(), single.loops.size()) << one.ops[i].name;
    EXPECT_EQ(one.ops[i].inputs, training.graph.ops[i].inputs);
  }
}

TEST(MicroBatch, PiecesKnowTheBatch) {
  const TrainingGraph training = cut_training(network(7), 3, {}).training;
  const std::vector<int32_t>& axes = training.unequal->batch.axis;
  // Samples 5 and 6 of 7.
  PieceFacts drawn;
  place_in_batch(training, op_named(training, "dropout"), 2, 3, axes, drawn);
  ASSERT_EQ(drawn.random.size(), 3u);
  EXPECT_EQ(drawn.random[0], (AxisPart{7, {5, 7}, 1}));
  EXPECT_EQ(whole_element(drawn.random, 0), 5 * 24);
  // 21 squares in 3 micro-batches: each divides by 7.
  for (int32_t m = 0; m < 3; ++m) {
    PieceFacts mean = {.mean_count = m == 0 ? 9.0 : 6.0};
    place_in_batch(training, OpId(training.forward_ops - 1), m, 3, axes, mean);
    EXPECT_DOUBLE_EQ(mean.mean_count, 7);
  }
  // Of equal ones it is their own.
  const TrainingGraph equal = cut_training(network(6), 3, {}).training;
  PieceFacts mean = {.mean_count = 6};
  place_in_batch(equal, OpId(equal.forward_ops - 1), 1, 3, axes, mean);
  EXPECT_EQ(mean.mean_count, 6);
}

TEST(MicroBatch, WhatCannotBeCutIsRefused) {
  const auto message = [](const Graph& graph, int64_t parts) -> std::string {
    try {
      cut_training(graph, parts, {});
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message(network(3), 4).find("3 samples cannot be cut into 4"), std::string::npos);
  // Pairs of samples: 5 = 3 + 2 leaves half a pair.
  GraphBuilder g("pairs");
  const TensorId x = g.input("x", {DType::F32, {6, 3}});
  const TensorId pairs = g.op(OpKind::Reshape, ShapeAttrs{{3, 6}}, {x}, "pairs");
  const TensorId w = g.weight("w", {DType::F32, {6}});
  g.attach_mean_squared_error(g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {pairs, w}, "y"));
  const Graph paired = g.finish();
  EXPECT_NE(message(paired, 4), "");
  // A constant that differs from sample to sample.
  GraphBuilder h("differs");
  const TensorId z = h.input("x", {DType::F32, {5, 2}});
  const TensorId c = h.constant("c", {DType::F32, {5, 2}}, {1, 2, 1, 2, 1, 2, 1, 2, 1, 3});
  const TensorId v = h.weight("v", {DType::F32, {2}});
  const TensorId sum = h.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {z, c}, "sum");
  h.attach_mean_squared_error(h.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {sum, v}, "y"));
  EXPECT_NE(message(h.finish(), 2).find("differs from sample to sample"), std::string::npos);
}

}  // namespace
}  // namespace windlass
