#include "windlass/plan/few_shot.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"

namespace windlass {
namespace {

std::string csv_message(const std::string& text) {
  try {
    measured_from_csv(text, "m.csv");
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

BatchPoint predicted_at(int64_t batch) {
  BatchPoint point;
  point.batch = batch;
  point.time = Seconds(0.01 + 0.001 * static_cast<double>(batch));
  point.peak = Bytes(1000 + 100 * batch);
  point.phases = {Bytes(500), point.peak, Bytes(900)};
  point.fits = true;
  return point;
}

TEST(FewShot, ReadsLines) {
  const auto points = measured_from_csv(
      "batch,method,peak_bytes,step_time_s\n4,plain,1000,0.5\r\n8, recompute ,,0.75\n\n", "m.csv");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].peak, Bytes(1000));
  EXPECT_EQ(points[1].method, "recompute");
  EXPECT_FALSE(points[1].peak);
  EXPECT_EQ(points[1].time, Seconds(0.75));
}

TEST(FewShot, MessagesNameTheLine) {
  EXPECT_THAT(csv_message("a,b\n"), testing::HasSubstr("line 1"));
  const std::string head = "batch,method,peak_bytes,step_time_s\n";
  EXPECT_THAT(csv_message(head), testing::HasSubstr("no steps"));
  EXPECT_THAT(csv_message(head + "4,plain,1\n"), testing::HasSubstr("line 2: 3 fields"));
  EXPECT_THAT(csv_message(head + "4,plain,x,1\n"), testing::HasSubstr("\"x\" is no peak"));
  EXPECT_THAT(csv_message(head + "4,plain,1,-1\n"), testing::HasSubstr("no time"));
}

// One step: 12 ms predicted, 24 measured; 1200 bytes predicted, 1500 measured.
TEST(FewShot, OnePointScalesTimesAndShiftsPeaks) {
  const Correction correction =
      fit_correction({{2, "plain", Bytes(1500), Seconds(0.024)}}, {predicted_at(2)});
  const BatchPoint moved = correction.applied(predicted_at(10), Bytes(2250));
  EXPECT_NEAR(moved.time.value, 0.04, 1e-9);
  EXPECT_EQ(moved.peak, Bytes(2300));
  EXPECT_FALSE(moved.fits);
  // Little is known far from the one step, a little more near it.
  EXPECT_GT(*correction.time_range(moved), 0.1);
  EXPECT_LT(*correction.time_range(correction.applied(predicted_at(2), Bytes(2250))),
            *correction.time_range(moved));
}

// measured = 5 ms + 1.5 x predicted, 200 + 1.1 x predicted.
TEST(FewShot, MorePointsGiveALine) {
  std::vector<MeasuredPoint> measured;
  std::vector<BatchPoint> predicted;
  for (int64_t batch : {1, 4, 16}) {
    const BatchPoint point = predicted_at(batch);
    predicted.push_back(point);
    measured.push_back(
        {batch, "plain",
         Bytes(static_cast<int64_t>(200 + 1.1 * static_cast<double>(point.peak.value))),
         Seconds(0.005 + 1.5 * point.time.value)});
  }
  const Correction correction = fit_correction(measured, predicted);
  EXPECT_NEAR(correction.time.offset, 0.005, 0.0006);
  EXPECT_NEAR(correction.time.scale, 1.5, 0.05);
  EXPECT_NEAR(correction.peak.scale, 1.1, 0.01);
  const double far = 0.005 + 1.5 * 0.074;
  const BatchPoint moved = correction.applied(predicted_at(64), Bytes(1 << 20));
  EXPECT_NEAR(moved.time.value, far, 0.03 * far);
  EXPECT_NEAR(static_cast<double>(moved.peak.value), 200 + 1.1 * 7400, 20);
  EXPECT_GT(*correction.time_range(moved) * moved.time.value, std::abs(moved.time.value - far));
}

// Steps of a host that is up to three times as slow, with something the prediction leaves out, and
// noise of 3 %; the three smallest batches are measured. A line through them alone is far off where
// they lie close together: the median error at sixteen times the batch stays below 10 %, and the
// stated range has the truth in nine of ten cases. Five points are better than two.
TEST(FewShot, RangesHoldTheTruth) {
  Rng rng(11);
  std::map<size_t, std::vector<double>> errors;
  for (const size_t points : {2U, 3U, 5U}) {
    int inside = 0;
    constexpr int kRounds = 500;
    for (int round = 0; round < kRounds; ++round) {
      const double scale = std::exp(1.1 * rng.uniform(-1, 1)), beside = 0.002 * rng.uniform();
      const auto truth = [&](int64_t batch) {
        return beside + scale * predicted_at(batch).time.value;
      };
      std::vector<MeasuredPoint> measured;
      std::vector<BatchPoint> predicted;
      for (size_t i = 0; i < points; ++i) {
        const auto batch = static_cast<int64_t>(2 * i + 2);
        const double noise = 1 + 0.03 * (rng.uniform() + rng.uniform() + rng.uniform() - 1.5) * 2;
        predicted.push_back(predicted_at(batch));
        measured.push_back({batch, "plain", {}, Seconds(truth(batch) * noise)});
      }
      const Correction correction = fit_correction(measured, predicted);
      const BatchPoint far = correction.applied(predicted_at(96), Bytes(1 << 20));
      const double error = std::abs(far.time.value / truth(96) - 1);
      errors[points].push_back(error);
      if (error * truth(96) <= *correction.time_range(far) * far.time.value) ++inside;
    }
    EXPECT_GE(inside, 9 * kRounds / 10) << points;
    std::ranges::sort(errors[points]);
    EXPECT_LT(errors[points][kRounds / 2], 0.1) << points;
  }
  EXPECT_LT(errors[5][250], errors[2][250]);
}

// A framework's step: 5 ms of the host, 1 ms of the device a sample; the longer hides most of the
// other.
BatchPoint step_of(int64_t batch, double host, double device) {
  BatchPoint point;
  point.batch = batch;
  point.host = Seconds(0.005 * host);
  point.device = Seconds((0.001 + 0.001 * static_cast<double>(batch)) * device);
  point.sharpness = 6;
  point.time =
      Seconds(std::pow(std::pow(point.host.value, 6) + std::pow(point.device.value, 6), 1.0 / 6));
  return point;
}

// Hosts up to twice as fast or slow, devices by a quarter or so, noise of 1 %: each has its factor.
// The three smallest batches say little of the device, five up to 16 samples enough.
TEST(FewShot, HostsAndDevicesAreToldApart) {
  Rng rng(5);
  for (const size_t points : {2U, 3U, 5U}) {
    int inside = 0, near = 0;
    constexpr int kRounds = 400;
    for (int round = 0; round < kRounds; ++round) {
      const double host = std::exp(0.7 * rng.uniform(-1, 1)),
                   device = std::exp(0.3 * rng.uniform(-1, 1));
      std::vector<MeasuredPoint> measured;
      std::vector<BatchPoint> predicted;
      for (size_t i = 0; i < points; ++i) {
        const int64_t batch = int64_t{1} << i;
        predicted.push_back(step_of(batch, 1, 1));
        measured.push_back(
            {batch,
             "plain",
             {},
             step_of(batch, host, device).time * (1 + 0.01 * rng.uniform(-1.7, 1.7))});
      }
      const Correction correction = fit_correction(measured, predicted);
      ASSERT_EQ(correction.parts.points, points);
      const double truth = step_of(64, host, device).time.value;
      const BatchPoint far = correction.applied(step_of(64, 1, 1), Bytes(1));
      const double error = std::abs(far.time.value / truth - 1);
      if (error * truth <= *correction.time_range(far) * far.time.value) ++inside;
      if (error < 0.08) ++near;
    }
    EXPECT_GE(inside, 9 * kRounds / 10) << points;
    if (points == 5) {
      EXPECT_GE(near, 9 * kRounds / 10);
    }
  }
}

// One measured step, wherever host and device lie to each other: what is said of it afterwards is
// what was measured.
TEST(FewShot, OneMeasuredStepIsMet) {
  for (const double host : {0.05, 0.5, 0.9, 1.0, 1.1, 2.0, 20.0}) {
    for (const double ratio : {0.5, 0.75, 0.95, 1.0, 1.05, 1.5, 2.0}) {
      SCOPED_TRACE(testing::Message() << host << " " << ratio);
      BatchPoint point;
      point.batch = 4;
      point.host = Seconds(host), point.device = Seconds(1);
      point.sharpness = 6;
      point.time = Seconds(std::pow(std::pow(host, 6) + 1, 1.0 / 6));
      const Seconds seen = point.time * ratio;
      const Correction correction = fit_correction({{4, "plain", {}, seen}}, {point});
      const BatchPoint said = correction.applied(point, Bytes(1));
      EXPECT_NEAR(said.time / seen, 1, 0.02);
      EXPECT_LT(*correction.time_range(said), 1.0);
    }
  }
}

TEST(FewShot, NothingMeasuredChangesNothing) {
  const BatchPoint point = Correction{}.applied(predicted_at(3), Bytes(1));
  EXPECT_TRUE(point.fits);
  EXPECT_EQ(point.peak, predicted_at(3).peak);
}

}  // namespace
}  // namespace windlass
