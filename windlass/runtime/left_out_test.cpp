// Labels that a loss leaves out: cut into micro-batches that have unlike numbers of them, a batch
// has the loss and the gradients of the batch that is not cut.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

using testing_runs::TestRun;

constexpr int64_t kSamples = 6;

// Linear layer on x [6, 4] with labels [6], and a second term whose labels [6, 2] are those of
// `next` [6, 3] from the second on.
Graph classifier(int64_t classes) {
  GraphBuilder g("classifier");
  const TensorId x = g.input("x", {DType::F32, {kSamples, 4}});
  const TensorId w = g.weight("w", {DType::F32, {classes, 4}});
  const TensorId y = g.op(OpKind::Linear, LinearAttrs{}, {x, w}, "y");
  const TensorId labels = g.label("labels", {DType::I64, {kSamples}});
  const TensorId first =
      g.op(OpKind::CrossEntropy, CrossEntropyAttrs{1, -100}, {y, labels}, "first");
  const TensorId wide = g.op(OpKind::Reshape, ShapeAttrs{{kSamples, 2, classes / 2}}, {y}, "wide");
  const TensorId next = g.label("next", {DType::I64, {kSamples, 3}});
  const TensorId later =
      g.op(OpKind::Slice, SliceAttrs{{0, 1}, {1, 1}, {kSamples, 2}}, {next}, "later");
  const TensorId second =
      g.op(OpKind::CrossEntropy, CrossEntropyAttrs{2, 1}, {wide, later}, "second");
  g.set_loss(g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {first, second}, "loss"));
  return g.finish();
}

// The mean of a linear layer's squares over what a mask leaves of each sample, and weighs.
Graph masked() {
  GraphBuilder g("masked");
  const TensorId x = g.input("x", {DType::F32, {kSamples, 4}});
  const TensorId w = g.weight("w", {DType::F32, {3, 4}});
  const TensorId mask = g.input("mask", {DType::F32, {kSamples, 3}});
  const auto binary = [&](BinaryFn fn, TensorId a, TensorId b, const char* name) {
    return g.op(OpKind::Binary, BinaryAttrs{fn}, {a, b}, name);
  };
  const auto sum = [&](TensorId a, const char* name) {
    return g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, {0, 1}, false}, {a}, name);
  };
  const TensorId y = g.op(OpKind::Linear, LinearAttrs{}, {x, w}, "y");
  const TensorId kept = binary(BinaryFn::Mul, binary(BinaryFn::Mul, y, y, "squares"), mask, "kept");
  const TensorId one = g.constant("one", {DType::F32, {}}, {1});
  const TensorId below = binary(BinaryFn::Max, sum(mask, "left"), one, "below");
  g.set_loss(binary(BinaryFn::Div, sum(kept, "above"), below, "loss"));
  return g.finish();
}

struct Outcome {
  double loss = 0;
  std::vector<float> gradient;
};

Outcome outcome_of(TestRun& run) {
  run.begin();
  Outcome found;
  const std::vector<std::byte> bytes = run.gradients().at("w");
  found.gradient.resize(bytes.size() / sizeof(float));
  std::memcpy(found.gradient.data(), bytes.data(), bytes.size());
  found.loss = run.executor().last_loss();
  return found;
}

void expect_same(const Outcome& found, const Outcome& expected) {
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
  ASSERT_EQ(found.gradient.size(), expected.gradient.size());
  for (size_t i = 0; i < expected.gradient.size(); ++i)
    ASSERT_NEAR(found.gradient[i], expected.gradient[i], 2e-7) << i;
}

constexpr const char* kCuts[] = {"single:micro-batches=2", "single:micro-batches=3",
                                 "recompute-all:micro-batches=3", "offload-all:micro-batches=6",
                                 "single:micro-batches=6,host-weights=on,host-update=on"};

Outcome run_classifier(int64_t classes, const std::string& strategy, bool none = false) {
  TestRun run(classifier(classes), strategy);
  // Pairs of samples have one, none and two labels that count; without the first of each row, next
  // has two that are not 1 among the first three samples, and none after.
  run.values["labels"] = Array({kSamples}, {2, -100, -100, -100, 1, 3});
  run.values["next"] = Array({kSamples, 3}, {1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 2, 1, 1, 0, 1, 1});
  if (none) run.values["labels"] = Array({kSamples}, -100);
  return outcome_of(run);
}

TEST(LeftOut, MicroBatchesHaveTheMeanOfTheBatch) {
  for (const int64_t classes : {6, 6000}) {  // both kernels
    const Outcome whole = run_classifier(classes, "single");
    EXPECT_GT(whole.loss, 1);
    for (const char* strategy : kCuts) {
      SCOPED_TRACE(strategy);
      expect_same(run_classifier(classes, strategy), whole);
    }
  }
}

// Of the pairs of samples a mask leaves one element, none and three; and of all of them less than
// the one that it divides by at least.
TEST(LeftOut, MicroBatchesDivideByTheMaskOfTheBatch) {
  const auto run_masked = [](const std::string& strategy, double weight) {
    TestRun run(masked(), strategy);
    Array mask({kSamples, 3});
    for (const size_t kept : {1, 12, 13, 17}) mask.values[kept] = weight;
    run.values["mask"] = mask;
    return outcome_of(run);
  };
  for (const double weight : {1.5, 0.125})
    for (const char* strategy : kCuts) {
      SCOPED_TRACE(strategy);
      expect_same(run_masked(strategy, weight), run_masked("single", weight));
    }
}

TEST(LeftOut, NoLabelCountsAtAll) {
  for (const char* strategy : {"single", "single:micro-batches=3"}) {
    try {
      run_classifier(6, strategy, true);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Runtime);
      EXPECT_THAT(error.message(), testing::EndsWith("nan"));
    }
  }
}

}  // namespace
}  // namespace windlass
