#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/parallel.h"
#include "windlass/base/rng.h"
#include "windlass/base/text.h"
#include "windlass/base/units.h"

namespace windlass {
namespace {

TEST(Units, FormatsForPeople) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_bytes(Bytes(512)), "512 B");
  EXPECT_EQ(format_bytes(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(format_bytes(Bytes(25 * kGiB.value)), "25.0 GiB");
  EXPECT_EQ(format_count(124439808), "124 M");
  EXPECT_EQ(format_count(999.6e3), "1.00 M");
  EXPECT_EQ(format_integer(124439808), "124,439,808");
  EXPECT_EQ(format_integer(-1000), "-1,000");
  EXPECT_EQ(format_flops(Flops(8.178e9)), "8.18 GFLOP");
}

TEST(Units, ReadsSizes) {
  EXPECT_EQ(parse_bytes("11GiB").value, 11 * kGiB.value);
  EXPECT_EQ(parse_bytes("512 MiB").value, 512 * kMiB.value);
  EXPECT_EQ(parse_bytes("9e9B").value, 9000000000);
  EXPECT_EQ(parse_bytes("80GB").value, 80000000000);
  EXPECT_EQ(parse_bytes("1.5g").value, kGiB.value * 3 / 2);
  EXPECT_EQ(parse_bytes("4096").value, 4096);
  for (const char* bad : {"", "GiB", "-1GiB", "1XB", "1e40", "nan", "1 G i B", "12GiBs"})
    EXPECT_THROW(parse_bytes(bad), Error) << bad;
}

TEST(Units, ReadsRatesAndTimes) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("484GB/s").value, 484e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("200 Gb/s").value, 25e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("1GiB/s").value, 1073741824.0);
  EXPECT_DOUBLE_EQ(parse_bandwidth("12e9").value, 12e9);
  EXPECT_DOUBLE_EQ(parse_flops_rate("11.3TFLOPS").value, 11.3e12);
  EXPECT_DOUBLE_EQ(parse_flops_rate("312 TFLOP/s").value, 312e12);
  EXPECT_DOUBLE_EQ(parse_seconds("5us").value, 5e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("1.5 ms").value, 1.5e-3);
  EXPECT_DOUBLE_EQ(parse_seconds("2").value, 2);
  for (const char* bad : {"", "0GB/s", "-1GB/s", "12GB", "12XB/s"})
    EXPECT_THROW(parse_bandwidth(bad), Error) << bad;
  for (const char* bad : {"", "11TB", "0TFLOPS", "fast"})
    EXPECT_THROW(parse_flops_rate(bad), Error) << bad;
  for (const char* bad : {"", "5 parsecs", "-1s", "1e300", "2h"})
    EXPECT_THROW(parse_seconds(bad), Error) << bad;
  for (const char* bad : {"1e-300", "1e300", "10KB/s"})
    EXPECT_THROW(parse_bandwidth(bad), Error) << bad;
  for (const char* bad : {"1e-300", "1e300"}) EXPECT_THROW(parse_flops_rate(bad), Error) << bad;
}

TEST(Units, FormatsRatesAndTimes) {
  EXPECT_EQ(format_bandwidth(BytesPerSecond(484e9)), "484 GB/s");
  EXPECT_EQ(format_flops_rate(FlopsPerSecond(11.34e12)), "11.3 TFLOPS");
  EXPECT_EQ(format_seconds(Seconds(5e-6)), "5.00 us");
  EXPECT_EQ(format_seconds(Seconds(1.42)), "1.42 s");
  EXPECT_EQ(format_seconds(Seconds(196)), "3 min 16 s");
}

TEST(Checked, OverflowIsAnInputError) {
  EXPECT_EQ(checked_mul(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_THROW(checked_mul(int64_t{1} << 32, int64_t{1} << 31), Error);
  EXPECT_THROW(checked_add(INT64_MAX, 1), Error);
}

TEST(Text, FindsTheNearestName) {
  const std::vector<std::string> known = {"resnet-50", "resnet-101", "gpt2-xl"};
  EXPECT_EQ(nearest_name("resnet50", known), "resnet-50");
  EXPECT_EQ(nearest_name("gtp2-xl", known), "gpt2-xl");
  EXPECT_EQ(nearest_name("something else", known), std::nullopt);
}

TEST(Text, MatchesGlobs) {
  EXPECT_TRUE(matches_glob("encoder.layer.0.weight", "encoder.*"));
  EXPECT_TRUE(matches_glob("abc", "*b?"));
  EXPECT_FALSE(matches_glob("abc", "*b"));
  EXPECT_TRUE(matches_glob("", "*"));
}

TEST(Rng, IsAFunctionOfSeedStreamAndCounter) {
  Rng a(7), b(7), c(8);
  EXPECT_EQ(a.bits(), b.bits());
  EXPECT_NE(a.bits(), c.bits());
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += a.uniform();
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  for (int i = 0; i < 100; ++i) {
    const int64_t value = a.integer(-2, 3);
    EXPECT_GE(value, -2);
    EXPECT_LE(value, 3);
  }
}

TEST(JsonObject, ReadsQuantitiesAndRejectsUnknownKeys) {
  const auto document = parse_json(R"({"memory": "11GiB", "bandwith": "12GB/s", "count": 4})");
  JsonObject object(document, "devices[0]");
  EXPECT_EQ(object.bytes("memory").value, 11 * kGiB.value);
  EXPECT_EQ(object.integer("count", 1, 8), 4);
  try {
    object.bandwidth("bandwidth");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("devices[0]: \"bandwith\" is not a known key (did you mean "
                                   "\"bandwidth\"?)"),
              std::string::npos)
        << error.message();
  }
}

TEST(JsonObject, RefusesHostileText) {
  for (const std::string& bad :
       {std::string("{"), std::string("{\"a\":1,\"a\":2}"), std::string(1000, '['),
        std::string("[1,]"), std::string("\xff\xfe"), std::string()})
    EXPECT_THROW(parse_json(bad), Error) << bad;
  EXPECT_THROW(parse_json(R"([{"a": {"b": 1, "c": [{"d": 1, "d": 1}]}}])"), Error);
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})", true)["a"], 2);
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": {"a": 2}}])")[1]["a"]["a"], 2);
}

// As many events as a trace has: what takes time in the square of their number would not end.
TEST(JsonObject, ReadsLongLists) {
  constexpr size_t kEvents = 300'000;
  std::string text = "[{}";
  for (size_t i = 1; i < kEvents; ++i) text += R"(,{"ts":1})";
  EXPECT_EQ(parse_json(text + "]").size(), kEvents);
}

TEST(InParallel, RunsEachOnceAndThrowsTheFirst) {
  for (const size_t threads : {0, 1, 3, 100}) {
    std::vector<std::atomic<int>> runs(50);
    in_parallel(runs.size(), threads, [&](size_t i) { ++runs[i]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
    std::atomic<int> others = 0;
    const auto fails = [&](size_t i) {
      if (i == 7 || i == 30) fail_input("{}", i);
      ++others;
    };
    try {
      in_parallel(50, threads, fails);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "7");
    }
    EXPECT_EQ(others, 48);
  }
  in_parallel(0, 4, [](size_t) { FAIL(); });
}

}  // namespace
}  // namespace windlass
