#include "windlass/run/library_threads.h"

#include <cstdlib>
#include <sched.h>

#include <gtest/gtest.h>

namespace windlass {
namespace {

TEST(LibraryThreads, TheEnvironmentDecidesFirst) {
  unsetenv("MKL_NUM_THREADS");
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_EQ(library_threads(), 3);
  setenv("OMP_NUM_THREADS", "many", 1);
  EXPECT_GE(library_threads(), 1);
  unsetenv("OMP_NUM_THREADS");
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_GE(library_threads(), 1);
  EXPECT_LE(library_threads(), CPU_COUNT(&allowed));
}

}  // namespace
}  // namespace windlass
