#include "windlass/runtime/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "windlass/run/library_threads.h"

namespace windlass {
namespace {

TEST(Threads, LibtorchTakesAsManyAsIsSaidWithoutIt) {
  EXPECT_EQ(library_threads(), at::intraop_default_num_threads());
}

}  // namespace
}  // namespace windlass
