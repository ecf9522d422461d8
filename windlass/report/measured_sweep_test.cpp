#include "windlass/report/measured_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

BatchPoint sweep_step(int64_t batch, double time, int64_t peak, bool fits = true) {
  BatchPoint point;
  point.batch = batch;
  point.time = Seconds(time);
  point.peak = Bytes(peak);
  point.fits = fits;
  return point;
}

// Times of measured steps are `factor` times the predicted 0.01 s + 0.01 s a sample.
SweepGroup sweep_group(const std::string& method, double factor, double slower = 1) {
  SweepGroup group;
  group.model = "m";
  group.method = method;
  for (int64_t batch : {1, 2, 4, 8, 16}) {
    const double time = slower * (0.01 + 0.01 * static_cast<double>(batch));
    group.points.push_back({.predicted = sweep_step(batch, time, 100 * batch, batch <= 8),
                            .measured = sweep_step(batch, factor * time, 100 * batch, batch <= 8)});
  }
  return group;
}

TEST(MeasuredSweep, StatisticsOfAGroup) {
  const SweepGroup exact = sweep_group("plain", 1);
  EXPECT_DOUBLE_EQ(exact.peak_r2(), 1);
  EXPECT_DOUBLE_EQ(exact.rate_r2(), 1);
  EXPECT_TRUE(MeasuredSweep::passed(exact));
  const SweepGroup slower = sweep_group("plain", 2);
  EXPECT_DOUBLE_EQ(slower.rate_error(), 1);  // twice the throughput
  EXPECT_LT(slower.rate_r2(), 0.97);
  EXPECT_FALSE(MeasuredSweep::passed(slower));
  // Three steps show that everything takes twice as long; a line is right for a line.
  EXPECT_NEAR(slower.few_shot_error().value(), 0, 1e-9);
  EXPECT_NEAR(slower.papaya_error().value(), 0, 1e-9);
  // 8 samples fit, in 0.09 s.
  EXPECT_DOUBLE_EQ(exact.best_rate(true), 8 / 0.09);
  SweepGroup too_large = exact;
  too_large.largest = 9;
  too_large.largest_runs = false;
  EXPECT_FALSE(MeasuredSweep::passed(too_large));
}

TEST(MeasuredSweep, DecisionsAndCosts) {
  MeasuredSweep sweep;
  sweep.models.push_back({.name = "m",
                          .limit = Bytes(800),
                          .profiled = {1, 16},
                          .groups = {sweep_group("plain", 1), sweep_group("recompute", 1, 1.5),
                                     sweep_group("offload", 1.25, 0.9)}});
  const std::vector<SweepGroup>& groups = sweep.models[0].groups;
  EXPECT_FALSE(decision_of(groups[0], groups[0]).has_value());
  const auto recompute = decision_of(groups[0], groups[1]);
  EXPECT_FALSE(recompute->predicted || recompute->measured);
  // Said to be faster, and is slower.
  const auto offload = decision_of(groups[0], groups[2]);
  EXPECT_TRUE(offload->predicted);
  EXPECT_FALSE(offload->measured);
  const auto cost = cost_of(sweep, "offload");
  EXPECT_NEAR(cost->worst, 1.125, 1e-9);
  EXPECT_NEAR(cost->predicted_worst, 0.9, 1e-9);
  EXPECT_FALSE(cost_of(sweep, "mixture").has_value());
  const std::string text = sweep_text(sweep);
  for (const char* part : {"predicted otherwise", "16 (over)", "1 of 2 decisions right"})
    EXPECT_THAT(text, testing::HasSubstr(part));
  const nlohmann::ordered_json json = sweep_json(sweep);
  EXPECT_EQ(json["models"][0]["groups"].size(), 3u);
  EXPECT_EQ(json["models"][0]["groups"][2]["pays"]["measured"], false);
  EXPECT_EQ(json["costs"].size(), 2u);
}

}  // namespace
}  // namespace windlass
