#include "windlass/graph/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/graph/builder.h"

namespace windlass {
namespace {

// x [4, 3] W, reduced over all its elements, then `scale` times.
Graph reduced(ReduceFn fn, double scale = 1) {
  GraphBuilder b("reduced");
  const TensorId x = b.input("x", {DType::F32, {4, 3}});
  const TensorId w = b.weight("w", {DType::F32, {2, 3}});
  const TensorId y = b.op(OpKind::Linear, LinearAttrs{}, {x, w}, "y");
  const TensorId sum = b.op(OpKind::Reduce, ReduceAttrs{fn, {0, 1}, false}, {y}, "sum");
  const TensorId loss = b.op(OpKind::Unary, UnaryAttrs{UnaryFn::Affine, scale, 0}, {sum}, "loss");
  b.set_output(loss);
  b.set_loss(loss);
  return b.finish();
}

TEST(Batch, MeansOverSamplesCanBeCut) {
  EXPECT_EQ(find_batch(reduced(ReduceFn::Mean, 3)).obstacle, "");
}

// The loss of a step is the mean over its micro-batches: a sum would be divided by their number.
TEST(Batch, SumsOverSamplesCannot) {
  EXPECT_THAT(find_batch(reduced(ReduceFn::Sum)).obstacle, testing::HasSubstr("is no mean"));
  EXPECT_THAT(find_batch(reduced(ReduceFn::Sum, 1.0 / 8)).obstacle,
              testing::HasSubstr("is no mean"));
  EXPECT_THAT(find_batch(reduced(ReduceFn::SumSquare)).obstacle, testing::HasSubstr("is no mean"));
}

}  // namespace
}  // namespace windlass
