// Steps of small graphs whose shape is unusual: what is computed, and that it takes the memory that
// was predicted.

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/graph/builder.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

using testing_runs::TestRun;

const std::vector<std::string> kGraphStrategies = {"single", "recompute-all", "offload-all",
                                                   "single:host-weights=on,host-update=on"};

TensorId binary(GraphBuilder& g, BinaryFn fn, TensorId a, TensorId b, const std::string& name) {
  return g.op(OpKind::Binary, BinaryAttrs{fn}, {a, b}, name);
}

// x [2, 3] times a weight [3].
TensorId scaled_input(GraphBuilder& g) {
  const TensorId x = g.input("x", {DType::F32, {2, 3}});
  const TensorId w = g.weight("w", {DType::F32, {3}});
  return binary(g, BinaryFn::Mul, x, w, "scaled");
}

TensorId mean(GraphBuilder& g, TensorId x) {
  return g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {0, 1}, false}, {x}, "mean");
}

std::vector<float> gradient_of(const Graph& graph, const std::string& strategy) {
  TestRun run(graph, strategy);
  run.begin();
  const std::vector<std::byte> bytes = run.gradients().at("w");
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The loss reads a term of itself again: loss = m + m m has dm = 1 + 2 m, and m + m has dm = 2.
TEST(RunGraphs, TheGradientOfTheLossIsAddedUp) {
  GraphBuilder once("once"), twice("twice"), square("square");
  once.set_loss(mean(once, scaled_input(once)));
  const TensorId m = mean(twice, scaled_input(twice));
  twice.set_loss(binary(twice, BinaryFn::Add, m, m, "loss"));
  const TensorId n = mean(square, scaled_input(square));
  square.set_loss(
      binary(square, BinaryFn::Add, n, binary(square, BinaryFn::Mul, n, n, "square"), "loss"));
  const Graph plain = once.finish(), doubled = twice.finish(), squared = square.finish();
  for (const std::string& strategy : kGraphStrategies) {
    SCOPED_TRACE(strategy);
    TestRun run(plain, strategy);
    run.begin();
    const double m0 = run.step().loss;
    const std::vector<float> one = gradient_of(plain, strategy);
    const std::vector<float> two = gradient_of(doubled, strategy);
    const std::vector<float> more = gradient_of(squared, strategy);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_FLOAT_EQ(two[i], 2 * one[i]);
      EXPECT_NEAR(more[i], (1 + 2 * m0) * one[i], 1e-6);
    }
  }
}

// A weight that is added to the loss, as the logarithm of a variance is, by itself or through a
// view: its gradient is 1, and 2 if it is added twice.
void expect_term_of_loss(bool viewed) {
  for (const int times : {1, 2}) {
    GraphBuilder g("term");
    const TensorId x = g.input("x", {DType::F32, {2, 3}});
    const TensorId v = g.weight("v", {DType::F32, {3}});
    TensorId w = g.weight("w", {DType::F32, viewed ? Shape{1} : Shape{}});
    if (viewed) w = g.op(OpKind::Reshape, ShapeAttrs{{}}, {w}, "view");
    TensorId loss = mean(g, binary(g, BinaryFn::Mul, x, v, "scaled"));
    for (int i = 0; i < times; ++i)
      loss = binary(g, BinaryFn::Add, loss, w, "loss" + std::to_string(i));
    g.set_loss(loss);
    const Graph graph = g.finish();
    for (const std::string& strategy : kGraphStrategies)
      EXPECT_EQ(gradient_of(graph, strategy), std::vector<float>{static_cast<float>(times)})
          << strategy;
  }
}

TEST(RunGraphs, AWeightIsATermOfTheLoss) { expect_term_of_loss(false); }
TEST(RunGraphs, AViewOfAWeightIsATermOfTheLoss) { expect_term_of_loss(true); }

// Equal operands share the gradient, which takes no more memory than unequal ones.
TEST(RunGraphs, TiesTakeThePredictedMemory) {
  for (BinaryFn fn : {BinaryFn::Max, BinaryFn::Min}) {
    GraphBuilder g("tied");
    const TensorId x = scaled_input(g);
    g.set_loss(mean(g, binary(g, fn, x, x, "tied")));
    const Graph graph = g.finish();
    for (const std::string& strategy : kGraphStrategies) {
      SCOPED_TRACE(strategy);
      TestRun run(graph, strategy);
      run.begin();
      EXPECT_EQ(run.step().peaks[0], run.predicted().result.peaks[0].bytes);
    }
  }
}

// Kernels are measured with operands made up for them, among which no divisor is 0.
TEST(RunGraphs, IntegersAreDivided) {
  for (BinaryFn fn : {BinaryFn::Mod, BinaryFn::Div}) {
    GraphBuilder g("divided");
    const TensorId ids = g.input("ids", {DType::I64, {2, 3}});
    const TensorId three = g.constant("three", {DType::I64, {}}, {3});
    const TensorId rest = binary(g, fn, ids, three, "rest");
    const TensorId number = g.op(OpKind::Cast, CastAttrs{DType::F32}, {rest}, "number");
    g.set_loss(mean(g, binary(g, BinaryFn::Mul, scaled_input(g), number, "product")));
    TestRun run(g.finish(), "single");
    run.begin();
    EXPECT_TRUE(std::isfinite(run.step().loss));
  }
}

}  // namespace
}  // namespace windlass
