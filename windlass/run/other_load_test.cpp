#include "windlass/run/other_load.h"

#include <algorithm>
#include <ctime>
#include <thread>

#include <gtest/gtest.h>

#include "windlass/base/stopwatch.h"

namespace windlass {
namespace {

TEST(OtherLoad, ReadsTheTicksOfAllProcessors) {
  // 10 + 2 + 5 + 1 + 1 + 3 = 22 busy, 70 idle, 8 waiting; guests are counted among `user`.
  EXPECT_EQ(parse_processor_ticks("cpu  10 2 5 70 8 1 1 3 4 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"),
            (ProcessorTicks{.all = 100, .busy = 22}));
  for (const char* broken : {"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8",
                             "cpu -1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 99999999999999999999"})
    EXPECT_FALSE(parse_processor_ticks(broken)) << broken;
}

TEST(OtherLoad, IsNothingBeforeAnythingWasMeasured) {
  OtherLoad load;
  EXPECT_EQ(load.share(), 0);
  load.end();  // that nobody began
  EXPECT_EQ(load.share(), 0);
  load.begin();
  EXPECT_EQ(load.share(), 0);
}

// What this process takes is not the others': if it keeps n of the host's processors busy, they
// have at most the rest.
TEST(OtherLoad, LeavesOutWhatThisProcessTakes) {
  OtherLoad load;
  const Stopwatch watch;
  const std::clock_t before = std::clock();
  load.begin();
  while (watch.seconds() < 0.4) continue;
  load.end();
  const double own = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  const double processors = std::max(1u, std::thread::hardware_concurrency());
  // Ticks are of 10 ms, and processors may have been taken away from what is counted.
  EXPECT_LE(load.share(), 1 - own / (watch.seconds() * processors) + 0.15);
  EXPECT_GE(load.share(), 0);
}

}  // namespace
}  // namespace windlass
