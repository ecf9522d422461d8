#include "windlass/run/other_load.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <sched.h>
#include <string>

#include <gtest/gtest.h>

#include "windlass/base/stopwatch.h"

namespace windlass {
namespace {

TEST(OtherLoad, ReadsTheTicksOfItsProcessors) {
  // 10 + 2 + 5 + 1 + 1 + 3 = 22 busy, 70 idle, 8 waiting; guests are counted among `user`.
  const std::string text =
      "cpu  99 9 9 99 9 9 9 9 9 9\ncpu0 10 2 5 70 8 1 1 3 4 0\ncpu1 1 1 1 1 1 1 1 1 1 1\n"
      "cpu12 0 0 0 9 0 0 0 0 0 0\nintr 1\n";
  EXPECT_EQ(parse_processor_ticks(text, {0}), (ProcessorTicks{.all = 100, .busy = 22}));
  EXPECT_EQ(parse_processor_ticks(text, {0, 1, 12}), (ProcessorTicks{.all = 117, .busy = 28}));
  EXPECT_EQ(parse_processor_ticks(text, {2}), std::nullopt);
  EXPECT_EQ(parse_processor_ticks(text, {}), std::nullopt);
  for (const char* broken : {"", "cpu", "cpu0 1 2 3", "cpux 1 2 3 4 5 6 7 8",
                             "cpu0 1 2 x 4 5 6 7 8", "cpu0 -1 2 3 4 5 6 7 8",
                             "cpu0 1 2 3 4 5 6 7 99999999999999999999", "x\ncpu0 1 2 3 4 5 6 7 8"})
    EXPECT_FALSE(parse_processor_ticks(broken, {0})) << broken;
}

TEST(OtherLoad, IsNothingBeforeAnythingWasMeasured) {
  OtherLoad load;
  EXPECT_EQ(load.share(), 0);
  load.end();  // that nobody began
  EXPECT_EQ(load.share(), 0);
  load.begin();
  EXPECT_EQ(load.share(), 0);
}

// What this process takes is not the others': if it keeps n of its processors busy, they
// have at most the rest.
TEST(OtherLoad, LeavesOutWhatThisProcessTakes) {
  OtherLoad load;
  const Stopwatch watch;
  const std::clock_t before = std::clock();
  load.begin();
  while (watch.seconds() < 0.4) continue;
  load.end();
  const double own = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  const double processors = CPU_COUNT(&mask);
  // Ticks are of 10 ms, and processors may have been taken away from what is counted.
  EXPECT_LE(load.share(), 1 - own / (watch.seconds() * processors) + 0.15);
  EXPECT_GE(load.share(), 0);
}

}  // namespace
}  // namespace windlass
