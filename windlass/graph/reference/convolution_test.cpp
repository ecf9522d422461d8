// Convolution, pooling, resampling and normalisation on small cases computed by hand.

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/graph/reference/run_op.h"

namespace windlass::reference {
namespace {

using testing::ElementsAre;

TEST(ReferenceConvolution, MultipliesWindows) {
  // 1 2 3
  // 4 5 6  kernel 1 2: 1*1 + 2*2 + 4*3 + 5*4 = 37, 2 + 6 + 15 + 24 = 47,
  // 7 8 9         3 4  4 + 10 + 21 + 32 = 67, 5 + 12 + 24 + 36 = 77; bias 100.
  const ConvAttrs attrs = {{1, 1}, {1, 1}, {0, 0}, {0, 0}, {}};
  const Array y = run_one(OpKind::Conv, attrs,
                          {floats({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
                           floats({1, 1, 2, 2}, {1, 2, 3, 4}), floats({1}, {100})});
  EXPECT_THAT(y.values, ElementsAre(137, 147, 167, 177));
}

TEST(ReferenceConvolution, GroupsDilationAndOneSidedPadding) {
  // Channel 0, padded: 0 1 2 3 4, taps 2 apart: 0 + 2*10, 1 + 3*10, 2 + 4*10.
  // Channel 1, padded: 0 5 6 7 8: 0*100 + 6, 5*100 + 7, 6*100 + 8.
  const ConvAttrs attrs = {{1}, {2}, {1}, {0}, {}, 2};
  const Array y = run_one(
      OpKind::Conv, attrs,
      {floats({1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), floats({2, 1, 2}, {1, 10, 100, 1}), Operand{}});
  EXPECT_EQ(y.shape, (Shape{1, 2, 3}));
  EXPECT_THAT(y.values, ElementsAre(20, 31, 42, 6, 507, 608));
}

TEST(ReferenceConvolution, Transposed) {
  // Kernel 1 2 3 at 0 and twice at 2: 1 2 3+2 4 6; the first is cut off by the padding, one 0 is
  // added by the output padding: (2 - 1) * 2 - 1 + 2 + 1 + 1 = 5 values. The second output channel
  // has the tenfold kernel.
  const ConvAttrs attrs = {{2}, {1}, {1}, {0}, {1}, 1, true};
  const Array y =
      run_one(OpKind::Conv, attrs,
              {floats({1, 1, 2}, {1, 2}), floats({1, 2, 3}, {1, 2, 3, 10, 20, 30}), Operand{}});
  EXPECT_EQ(y.shape, (Shape{1, 2, 5}));
  EXPECT_THAT(y.values, ElementsAre(2, 5, 4, 6, 0, 20, 50, 40, 60, 0));
}

TEST(ReferencePooling, CeilModeHasOneWindowThatIsTooLarge) {
  PoolAttrs attrs = {PoolFn::Average, {3}, {2}, {1}, {0}, {0}};
  const Operand x = floats({1, 1, 2}, {1, 5});
  attrs.ceil_mode = true;
  EXPECT_THAT(run_one(OpKind::Pool, attrs, {x}).values, ElementsAre(3));
  attrs.fn = PoolFn::Max;
  EXPECT_THAT(gradient_of(OpKind::Pool, attrs, {x}).values, ElementsAre(0, 1));
}

TEST(ReferencePooling, CeilModeAddsAnIncompleteWindow) {
  PoolAttrs attrs = {PoolFn::Max, {2}, {2}, {1}, {0}, {0}};
  const Operand x = floats({1, 1, 5}, {1, 5, 2, 4, 3});
  EXPECT_THAT(run_one(OpKind::Pool, attrs, {x}).values, ElementsAre(5, 4));
  attrs.ceil_mode = true;
  const ForwardResult found = run_op(OpKind::Pool, attrs, {x});
  EXPECT_THAT(found.outputs[0].values, ElementsAre(5, 4, 3));
  EXPECT_THAT(found.auxiliaries[0].values, ElementsAre(1, 1, 0));  // place inside the window
  EXPECT_THAT(gradient_of(OpKind::Pool, attrs, {x}).values, ElementsAre(0, 1, 0, 1, 1));
  // The place beyond the end is not padding: it never counts.
  attrs.fn = PoolFn::Average;
  attrs.count_include_pad = true;
  EXPECT_THAT(run_one(OpKind::Pool, attrs, {x}).values, ElementsAre(3, 3, 3));
  // A window that would begin beyond the input is left out: ceil(2 / 4) + 1 = 2, but 4 >= 3.
  const PoolAttrs sparse = {PoolFn::Max, {1}, {4}, {1}, {0}, {0}, true};
  EXPECT_THAT(run_one(OpKind::Pool, sparse, {floats({1, 1, 3}, {7, 8, 9})}).values, ElementsAre(7));
}

TEST(ReferencePooling, AverageWithAndWithoutPadding) {
  // Windows of 3 from -1, 1 and 3: 1 + 5, 5 + 2 + 4, 4 + 3.
  PoolAttrs attrs = {PoolFn::Average, {3}, {2}, {1}, {1}, {1}};
  const Operand x = floats({1, 1, 5}, {1, 5, 2, 4, 3});
  EXPECT_THAT(run_one(OpKind::Pool, attrs, {x}).values, near({6.0 / 2, 11.0 / 3, 7.0 / 2}));
  attrs.count_include_pad = true;
  EXPECT_THAT(run_one(OpKind::Pool, attrs, {x}).values, near({6.0 / 3, 11.0 / 3, 7.0 / 3}));
}

TEST(ReferencePooling, MaxIgnoresPaddingAndTakesTheFirstOfEquals) {
  const PoolAttrs attrs = {PoolFn::Max, {2, 2}, {2, 2}, {1, 1}, {1, 1}, {1, 1}};
  // -1 -2   Each window has one corner of the image.
  // -3 -4
  const ForwardResult found = run_op(OpKind::Pool, attrs, {floats({1, 1, 2, 2}, {-1, -2, -3, -4})});
  EXPECT_THAT(found.outputs[0].values, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(found.auxiliaries[0].values, ElementsAre(3, 2, 1, 0));
  const PoolAttrs one = {PoolFn::Max, {3}, {1}, {1}, {0}, {0}};
  EXPECT_THAT(run_op(OpKind::Pool, one, {floats({1, 1, 3}, {1, 6, 6})}).auxiliaries[0].values,
              ElementsAre(1));
}

TEST(ReferenceResampling, LinearCoordinates) {
  const Operand x = floats({1, 1, 2}, {0, 10});
  ResizeAttrs attrs = {{4}, ResizeMode::Linear, ResizeCoordinates::HalfPixel};
  // u = (i + 1/2) / 2 - 1/2 = -1/4, 1/4, 3/4, 5/4, cut to [0, 1].
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, near({0, 2.5, 7.5, 10}));
  attrs.coordinates = ResizeCoordinates::Asymmetric;  // u = 0, 1/2, 1, 3/2
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, near({0, 5, 10, 10}));
  attrs.coordinates = ResizeCoordinates::AlignCorners;  // u = 0, 1/3, 2/3, 1
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, near({0, 10.0 / 3, 20.0 / 3, 10}));
}

TEST(ReferenceResampling, NearestCoordinates) {
  const Operand x = floats({1, 1, 4}, {10, 11, 12, 13});
  ResizeAttrs attrs = {{2}, ResizeMode::Nearest, ResizeCoordinates::HalfPixel};
  // u = 2 i + 1/2: half way, so the upper neighbour.
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, ElementsAre(11, 13));
  attrs.coordinates = ResizeCoordinates::Asymmetric;
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, ElementsAre(10, 12));
  attrs.coordinates = ResizeCoordinates::AlignCorners;
  EXPECT_THAT(run_one(OpKind::Resize, attrs, {x}).values, ElementsAre(10, 13));
}

TEST(ReferenceNormalization, BatchStatisticsAreBiased) {
  // Mean 2, variance ((1 - 2)^2 + (3 - 2)^2) / 2 = 1; 2 xhat + 5.
  std::vector<Operand> inputs = {floats({2, 1}, {1, 3}), floats({1}, {2}), floats({1}, {5}),
                                 floats({1}, {1}), floats({1}, {4})};
  const ForwardResult found = run_op(OpKind::BatchNorm, BatchNormAttrs{0}, inputs);
  EXPECT_THAT(found.outputs[0].values, near({3, 7}));
  EXPECT_THAT(found.auxiliaries[0].values, near({2}));
  EXPECT_THAT(found.auxiliaries[1].values, near({1}));
  // With running mean 1 and variance 4: 2 (1 - 1) / 2 + 5 and 2 (3 - 1) / 2 + 5.
  EXPECT_THAT(run_one(OpKind::BatchNorm, BatchNormAttrs{0, 0.1, false}, inputs).values,
              near({5, 7}));
}

TEST(ReferenceNormalization, RootMeanSquareWithOffset) {
  // sqrt((9 + 16) / 2) = 5 / sqrt(2); scales 0 + 1 and 1 + 1.
  const Array y =
      run_one(OpKind::RmsNorm, LayerNormAttrs{0, 0, 1}, {floats({2}, {3, 4}), floats({2}, {0, 1})});
  EXPECT_THAT(y.values, near({3 * std::sqrt(2) / 5, 8 * std::sqrt(2) / 5}));
}

TEST(ReferenceNormalization, GroupsShareStatistics) {
  // Groups (1, 3) and (10, 30): each becomes -1, 1 before scale and bias.
  const Array y = run_one(
      OpKind::GroupNorm, GroupNormAttrs{2, 0},
      {floats({1, 4, 1}, {1, 3, 10, 30}), floats({4}, {1, 2, 3, 4}), floats({4}, {0, 0, 0, 5})});
  EXPECT_THAT(y.values, near({-1, 2, -3, 9}));
}

TEST(ReferenceNormalization, LocalResponse) {
  const Operand x = floats({1, 3, 1}, {1, 2, 3});
  // alpha / size = 1: denominators 1 + 1 + 4, 1 + 1 + 4 + 9, 1 + 4 + 9.
  EXPECT_THAT(run_one(OpKind::LocalResponseNorm, LrnAttrs{3, 3, 1, 1}, {x}).values,
              near({1.0 / 6, 2.0 / 15, 3.0 / 14}));
  // An even window has its extra channel after: 1 + 1 + 4, 1 + 4 + 9, 1 + 9.
  EXPECT_THAT(run_one(OpKind::LocalResponseNorm, LrnAttrs{2, 2, 1, 1}, {x}).values,
              near({1.0 / 6, 2.0 / 14, 3.0 / 10}));
}

}  // namespace
}  // namespace windlass::reference
