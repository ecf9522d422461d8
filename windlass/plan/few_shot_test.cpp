#include "windlass/plan/few_shot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

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
  EXPECT_NEAR(moved.time.value, 0.04, 1e-12);
  EXPECT_EQ(moved.peak, Bytes(2300));
  EXPECT_FALSE(moved.fits);
  EXPECT_FALSE(correction.time_range);
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
  EXPECT_NEAR(correction.time_offset, 0.005, 1e-9);
  EXPECT_NEAR(correction.time_scale, 1.5, 1e-9);
  EXPECT_NEAR(correction.peak_scale, 1.1, 1e-2);
  EXPECT_LT(*correction.time_range, 1e-9);
  EXPECT_NEAR(correction.applied(predicted_at(64), Bytes(1 << 20)).time.value, 0.005 + 1.5 * 0.074,
              1e-9);
}

TEST(FewShot, NothingMeasuredChangesNothing) {
  const BatchPoint point = Correction{}.applied(predicted_at(3), Bytes(1));
  EXPECT_TRUE(point.fits);
  EXPECT_EQ(point.peak, predicted_at(3).peak);
}

}  // namespace
}  // namespace windlass
