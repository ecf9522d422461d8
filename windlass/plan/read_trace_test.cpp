#include "windlass/plan/read_trace.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/plan/read_measured.h"

namespace windlass {
namespace {

// Steps of 400, 500 and 900 us: the median is 500. The card's memory counts, not the host's.
TEST(ReadTrace, StepsOfTheProfiler) {
  const std::string events =
      R"([{"name":"ProfilerStep#1","ph":"X","dur":900},{"name":"aten::mm","dur":5},
          {"name":"ProfilerStep#2","ph":"X","dur":400},{"name":"ProfilerStep#3","ph":"X","dur":500},
          {"name":"[memory]","args":{"Device Type":0,"Total Allocated":9000}},
          {"name":"[memory]","args":{"Device Type":1,"Total Allocated":700}},
          {"name":"[memory]","args":{"Device Type":1,"Total Allocated":300}}])";
  for (const std::string& text : {events, R"({"schemaVersion":1,"traceEvents":)" + events + "}"}) {
    const TraceFigures figures = figures_from_trace(text);
    EXPECT_DOUBLE_EQ(figures.time.value().value, 500e-6);
    EXPECT_EQ(figures.peak.value().value, 700);
  }
}

// 100 bytes are left at the end. Before that 50 were freed, and before that 30 were taken:
// 150 at most, on the first card; the second has 120.
TEST(ReadTrace, HistoryOfASnapshot) {
  const TraceFigures figures = figures_from_trace(
      R"({"segments":[{"device":0,"allocated_size":60},{"device":0,"allocated_size":40},
                      {"device":1,"allocated_size":120}],
          "device_traces":[[{"action":"alloc","size":30},{"action":"free_requested","size":50},
                            {"action":"free_completed","size":50}],[]]})");
  EXPECT_FALSE(figures.time.has_value());
  EXPECT_EQ(figures.peak.value().value, 150);
}

TEST(ReadTrace, OtherFilesAreRefused) {
  for (const char* text :
       {"", "[", "{}", "[]", "7", R"({"traceEvents":7})", R"({"segments":[]})",
        R"([{"name":"ProfilerStep#1","dur":-1}])", R"([{"name":"ProfilerStep#1","dur":"x"}])",
        R"([{"name":7},[],null,{"name":"[memory]","args":[]}])", R"({"segments":[7]})",
        R"({"segments":[{"allocated_size":1e300}],"device_traces":[7]})"})
    EXPECT_THROW(figures_from_trace(text), Error) << text;
}

TEST(ReadTrace, NamesSayBatchAndMethod) {
  EXPECT_THROW(read_measured("/nowhere/trace.json@8"), Error);
  EXPECT_THROW(read_measured("trace.json@0"), Error);
  EXPECT_THROW(read_measured("trace.json@8,"), Error);
}

// Traces of newer PyTorch begin with an empty line.
TEST(ReadTrace, AsksForTheBatchOfATrace) {
  const std::string path = ::testing::TempDir() + "windlass_trace_without_batch.json";
  for (const char* text : {"{}", "\n  {}", "\r\n[]"}) {
    std::ofstream(path) << text;
    try {
      read_measured(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), ::testing::HasSubstr("@BATCH")) << text;
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace windlass
