// Many steps on several devices take no more memory than a few.

#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/runtime/device_case.h"

namespace windlass {
namespace {

// Of this process, in bytes.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(LongRunSlow, MemoryStaysConstant) {
  const int steps = thorough() ? 1000 : 60;
  for (const char* strategy : {"data-parallel:zero=3", "gpipe:micro-batches=4",
                               "offload-all:host-weights=on,host-update=on"}) {
    SCOPED_TRACE(strategy);
    const testing_runs::DeviceCase two(strategy, 2);
    std::vector<int64_t> early;
    int64_t resident = 0;
    testing_runs::RunSettings settings = {.steps = steps};
    settings.after_step = [&](int step, Executor& executor) {
      if (step == 2) early = executor.live_bytes();
      if (step > 2) {
        EXPECT_EQ(executor.live_bytes(), early) << "step " << step;
      }
      if (step == steps / 2) resident = resident_bytes();
    };
    two.run(settings);
    // What libraries keep for themselves does not grow with the steps. A step that lost what it has
    // alive would lose 20 kB each time.
    EXPECT_LE(resident_bytes() - resident, int64_t{4} << 20);
  }
}

}  // namespace
}  // namespace windlass
