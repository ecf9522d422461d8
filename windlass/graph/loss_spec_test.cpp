#include "windlass/graph/loss_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

TEST(LossSpec, RoundTrips) {
  for (const auto& text :
       {"cross-entropy", "cross-entropy:axis=1", "cross-entropy:axis=-1,ignore=0", "mse", "bce",
        "l1", "huber", "huber:delta=0.5"})
    EXPECT_EQ(format_loss(parse_loss(text)), text);
}

TEST(LossSpec, RefusesWhatItDoesNotKnow) {
  for (const auto& text : {"", "hinge", "mse:axis=1", "cross-entropy:", "cross-entropy:axis",
                           "cross-entropy:axis=x", "huber:delta=0", "huber:delta=nan"}) {
    try {
      parse_loss(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
      EXPECT_THAT(error.message(), testing::HasSubstr(text));
    }
  }
}

// Logits [2, 5, 3] or [2, 3, 5] of five classes at three places.
int64_t axis_of(bool convolution, bool transposed) {
  GraphBuilder b("classes");
  TensorId y;
  if (convolution) {
    const TensorId x = b.input("x", {DType::F32, {2, 4, 3}});
    const TensorId w = b.weight("w", {DType::F32, {5, 4, 1}});
    y = b.op(OpKind::Conv, ConvAttrs{{1}, {1}, {0}, {0}, {0}}, {x, w}, "conv");
  } else {
    const TensorId x = b.input("x", {DType::F32, {2, 3, 4}});
    const TensorId w = b.weight("w", {DType::F32, {5, 4}});
    y = b.op(OpKind::Linear, LinearAttrs{}, {x, w}, "linear");
  }
  if (transposed) y = b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1}}, {y}, "transposed");
  y = b.op(OpKind::Unary, UnaryAttrs{UnaryFn::Affine, 2, 0}, {y}, "scaled");
  return class_axis(b.graph(), y);
}

TEST(LossSpec, ClassesAreWhereTheFeaturesAre) {
  EXPECT_EQ(axis_of(false, false), 2);
  EXPECT_EQ(axis_of(false, true), 1);
  EXPECT_EQ(axis_of(true, false), 1);
  EXPECT_EQ(axis_of(true, true), 2);
}

// Data are found by names, so that labels cannot have that of an input.
TEST(LossSpec, LabelsHaveANameOfTheirOwn) {
  const auto label_of = [](const std::string& input, LossKind loss) {
    GraphBuilder b("names");
    const TensorId x = b.input(input, {DType::F32, {2, 4}});
    const TensorId y = b.op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu}, {x}, "y");
    attach_loss(b, y, loss);
    for (const Tensor& tensor : b.graph().tensors)
      if (tensor.role == TensorRole::Label) return tensor.name;
    return std::string();
  };
  EXPECT_EQ(label_of("x", LossKind::CrossEntropy), "labels");
  EXPECT_EQ(label_of("labels", LossKind::CrossEntropy), "loss_labels");
  EXPECT_EQ(label_of("labels", LossKind::Huber), "target");
  EXPECT_EQ(label_of("target", LossKind::MeanSquaredError), "loss_target");
}

}  // namespace
}  // namespace windlass
