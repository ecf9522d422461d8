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

struct Outcome {
  double loss = 0;
  std::vector<float> gradient;
};

Outcome run_classifier(int64_t classes, const std::string& strategy, bool none = false) {
  TestRun run(classifier(classes), strategy);
  // Pairs of samples have one, none and two labels that count; without the first of each row, next
  // has two that are not 1 among the first three samples, and none after.
  run.values["labels"] = Array({kSamples}, {2, -100, -100, -100, 1, 3});
  run.values["next"] = Array({kSamples, 3}, {1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 2, 1, 1, 0, 1, 1});
  if (none) run.values["labels"] = Array({kSamples}, -100);
  run.begin();
  Outcome found;
  const std::vector<std::byte> bytes = run.gradients().at("w");
  found.gradient.resize(bytes.size() / sizeof(float));
  std::memcpy(found.gradient.data(), bytes.data(), bytes.size());
  found.loss = run.executor().last_loss();
  return found;
}

TEST(LeftOut, MicroBatchesHaveTheMeanOfTheBatch) {
  for (const int64_t classes : {6, 6000}) {  // both kernels
    const Outcome whole = run_classifier(classes, "single");
    EXPECT_GT(whole.loss, 1);
    for (const char* strategy :
         {"single:micro-batches=2", "single:micro-batches=3", "recompute-all:micro-batches=3",
          "offload-all:micro-batches=6", "single:micro-batches=6,host-weights=on,host-update=on"}) {
      SCOPED_TRACE(strategy);
      const Outcome cut = run_classifier(classes, strategy);
      EXPECT_NEAR(cut.loss, whole.loss, 1e-6 * whole.loss);
      ASSERT_EQ(cut.gradient.size(), whole.gradient.size());
      for (size_t i = 0; i < whole.gradient.size(); ++i)
        ASSERT_NEAR(cut.gradient[i], whole.gradient[i], 2e-7) << i;
    }
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
