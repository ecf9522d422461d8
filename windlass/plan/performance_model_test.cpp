#include "windlass/plan/performance_model.h"

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/plan/method_advice.h"

namespace windlass {
namespace {

// Bytes of the phases, and max(floor, offset + slope b) seconds.
struct Law {
  std::array<double, kStepPhases> slope, intercept;
  double floor, offset, per_sample;

  BatchPoint at(int64_t batch, double limit = 1e18) const {
    BatchPoint point;
    point.batch = batch;
    const auto b = static_cast<double>(batch);
    point.time = Seconds(std::max(floor, offset + per_sample * b));
    for (size_t p = 0; p < kStepPhases; ++p) {
      point.phases[p] = Bytes(static_cast<int64_t>(intercept[p] + slope[p] * b));
      point.peak = std::max(point.peak, point.phases[p]);
    }
    point.fits = static_cast<double>(point.peak.value) <= limit;
    return point;
  }
  std::vector<BatchPoint> points(double limit = 1e18) const {
    std::vector<BatchPoint> result;
    for (int64_t b = 1; b <= 1024; b *= 2) result.push_back(at(b, limit));
    return result;
  }
};

// 1000 + 10 b in the forward pass, 800 + 30 b in the backward pass, 2000 in the update: the update
// is highest up to b = 40.
const Law kPlain = {{10, 30, 0}, {1000, 800, 2000}, 0.01, 0.002, 0.001};

TEST(PerformanceModel, FindsTheLinesOfEachPhase) {
  const PerformanceModel model = fit_performance(kPlain.points());
  for (size_t p = 0; p < kStepPhases; ++p) {
    EXPECT_NEAR(model.peak.slope[p], kPlain.slope[p], 1e-6);
    EXPECT_NEAR(model.peak.intercept[p], kPlain.intercept[p], 1e-4);
  }
  EXPECT_LT(model.peak.error, 1e-9);
  EXPECT_EQ(model.peak.phase_at(10), StepPhase::Optimizer);
  EXPECT_EQ(model.peak.phase_at(100), StepPhase::Backward);
  // (2600 - 800) / 30 = 60.
  EXPECT_NEAR(model.peak.largest_batch(2600), 60, 1e-6);
  EXPECT_LT(model.peak.largest_batch(1999), 1);
}

TEST(PerformanceModel, FindsFloorLineAndSaturation) {
  const PerformanceModel model = fit_performance(kPlain.points());
  EXPECT_NEAR(model.time.floor, 0.01, 1e-12);
  EXPECT_NEAR(model.time.slope, 0.001, 1e-9);
  EXPECT_NEAR(model.time.offset, 0.002, 1e-7);
  EXPECT_LT(model.time.error, 1e-6);
  // 0.9 x 0.002 / (0.001 x 0.1) = 18 on the line, 0.9 x 0.01 / 0.001 = 9 on the floor.
  EXPECT_NEAR(*model.time.saturation(), 18, 1e-3);
}

// One line through a peak with a knee is off by as much as the knee is sharp.
TEST(PerformanceModel, PapayasLineMissesTheKnee) {
  const Law flat = {{1, 2, 0}, {1000, 1000, 1500}, 0.01, 0.0, 0.001};
  const PerformanceModel model = fit_performance(flat.points());
  EXPECT_LT(model.peak.error, 1e-9);
  EXPECT_LT(model.papaya.memory_r2, 0.9999);
  // The hinge has no floor beside its knee: it does better than the line.
  EXPECT_GT(model.papaya.hinge_r2, model.papaya.linear_r2);
}

TEST(PerformanceModel, CriterionIsThatOfThroughput) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    const auto law = [&] {
      return Law{{0, rng.uniform(1, 50), 0},
                 {0, rng.uniform(100, 5000), 0},
                 0,
                 rng.uniform(0.0, 0.05),
                 rng.uniform(0.0005, 0.002)};
    };
    const Law a = law(), b = law();
    const double memory = rng.uniform(6000, 50000);
    const PerformanceModel plain = fit_performance(a.points()),
                           method = fit_performance(b.points());
    // gamma + delta alpha / (M - beta), from the derivation.
    const auto time_of_a_sample = [&](const Law& l) {
      return l.per_sample + l.offset * l.slope[1] / (memory - l.intercept[1]);
    };
    const double expected_plain = time_of_a_sample(a), expected_method = time_of_a_sample(b);
    // Points are rounded to whole bytes.
    EXPECT_NEAR(1 / plain.best_rate(memory), expected_plain, 0.02 * expected_plain);
    if (std::abs(expected_method / expected_plain - 1) < 0.05) continue;
    EXPECT_EQ(method.best_rate(memory) > plain.best_rate(memory), expected_method < expected_plain);
  }
}

TEST(PerformanceModel, CrossingsAreWhereBothAreEqual) {
  // Half of the memory a sample for a third more time.
  const Law saver = {{5, 15, 0}, {1000, 800, 0}, 0, 0.05, 0.0013};
  const Law keeper = {{10, 30, 0}, {1000, 800, 0}, 0, 0.05, 0.001};
  const PerformanceModel plain = fit_performance(keeper.points());
  const PerformanceModel method = fit_performance(saver.points());
  // 0.001 + 0.05 x 30 / m = 0.0013 + 0.05 x 15 / m: m = 0.75 / 0.0003 = 2500 above the intercept.
  const Crossing crossing = memory_crossing(plain, method, 900, 1e6);
  ASSERT_TRUE(crossing.below);
  EXPECT_NEAR(*crossing.below, 3300, 15);
  EXPECT_FALSE(memory_crossing(method, plain, 900, 3000).ever);
  // In 6600 bytes the network must be about twice as deep.
  const Crossing depth = depth_crossing(plain, method, 6600);
  ASSERT_TRUE(depth.below);
  EXPECT_NEAR(*depth.below, 2, 0.02);
}

TEST(PerformanceModel, PapayaAssumesEqualIntercepts) {
  PapayaModel plain, method;
  plain.alpha = 30, plain.beta = 800, plain.gamma = 0.001, plain.delta = 0.05;
  method = plain;
  method.alpha = 15, method.gamma = 0.0013;
  // Score 15 / 0.0003 = 50000; point (M - 800) / 0.05.
  EXPECT_TRUE(papaya_decision(plain, method, 3000).pays);
  EXPECT_FALSE(papaya_decision(plain, method, 3600).pays);
}

TEST(MethodAdvice, SaysWhyNot) {
  const double limit = 3000;
  const auto curve = [&](const char* name, const Law& law) {
    MethodCurve result;
    result.name = name;
    result.points = law.points(limit);
    for (const BatchPoint& point : result.points)
      if (point.fits) result.largest = point.batch;
    return result;
  };
  const Law slow = {{1, 2, 0}, {1000, 800, 2000}, 0.02, 0.004, 0.002};
  const Law fast = {{1, 2, 0}, {1000, 800, 2000}, 0.01, 0.002, 0.001};
  const Law large = {{10, 30, 0}, {1000, 800, 2900}, 0.01, 0.002, 0.001};
  const Law none = {{10, 30, 0}, {1000, 800, 9000}, 0.01, 0.002, 0.001};
  const std::vector<MethodAdvice> advice =
      advise_methods({curve("plain", kPlain), curve("slow", slow), curve("fast", fast),
                      curve("large", large), curve("none", none)},
                     Bytes(3000), Bytes(4000));
  EXPECT_FALSE(advice[1].pays);
  EXPECT_NE(advice[1].because.find("do not win that back"), std::string::npos);
  EXPECT_NEAR(advice[1].slower, 2, 0.1);
  EXPECT_TRUE(advice[2].pays);
  EXPECT_GT(advice[2].gain, 1);
  EXPECT_FALSE(advice[3].pays);
  EXPECT_NE(advice[3].because.find("does not let a larger batch fit"), std::string::npos);
  EXPECT_FALSE(advice[4].pays);
  EXPECT_NE(advice[4].because.find("not even one sample"), std::string::npos);
  // Seconds over bytes, at 64 samples: (0.132 - 0.066) / ((800 + 1920) - 2000).
  EXPECT_EQ(advice[1].compared_at, 64);
  EXPECT_NEAR(advice[1].seconds_per_byte, 0.066 / 720, 1e-9);
}

}  // namespace
}  // namespace windlass
