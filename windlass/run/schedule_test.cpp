#include "windlass/run/schedule.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

TEST(LearningRate, WarmsUpEvenly) {
  const LearningRate rate = {.peak = 1, .warm_up = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(rate.at(1), 0.25);
  EXPECT_DOUBLE_EQ(rate.at(4), 1);
  EXPECT_DOUBLE_EQ(rate.at(5), 1);
  EXPECT_DOUBLE_EQ(rate.at(100), 1);
}

// Half a cosine from step 2 (1.0) to step 6 (0.2): halfway, at step 4, (1 + 0.2) / 2.
TEST(LearningRate, FallsAsACosine) {
  const LearningRate rate = {
      .peak = 1, .floor = 0.2, .shape = RateShape::Cosine, .warm_up = 2, .steps = 6};
  EXPECT_DOUBLE_EQ(rate.at(2), 1);
  EXPECT_DOUBLE_EQ(rate.at(4), 0.6);
  EXPECT_DOUBLE_EQ(rate.at(6), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(7), 0.2);
}

TEST(LearningRate, FallsInALine) {
  const LearningRate rate = {.peak = 1, .shape = RateShape::Linear, .steps = 4};
  EXPECT_DOUBLE_EQ(rate.at(1), 0.75);
  EXPECT_DOUBLE_EQ(rate.at(4), 0);
}

TEST(LearningRate, NamesItsShapes) {
  EXPECT_EQ(rate_shape_from_name("cosine"), RateShape::Cosine);
  EXPECT_THROW(rate_shape_from_name("cosin"), Error);
}

}  // namespace
}  // namespace windlass
