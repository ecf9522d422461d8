#include "windlass/runtime/move_threads.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

TEST(MoveThreads, EveryElementOnce) {
  for (int64_t count : {1, 2, 3, 7}) {
    MoveThreads threads(count);
    for (int64_t size : {0, 1, 5, 64, 1000})
      for (int64_t least : {1, 10, 2000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(size));
        std::atomic<int64_t> calls = 0;
        threads.divide(size, least, [&](int64_t begin, int64_t end) {
          ++calls;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& times : seen) EXPECT_EQ(times, 1);
        EXPECT_EQ(calls, std::max(int64_t{1}, std::min(count, size / least)));
      }
  }
}

// Callers that find the threads busy move by themselves.
TEST(MoveThreads, SeveralCallers) {
  MoveThreads threads(3);
  std::vector<int64_t> sums(4, 0);
  std::vector<std::thread> callers;
  for (int64_t& sum : sums)
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        std::atomic<int64_t> total = 0;
        threads.divide(100, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) total += i;
        });
        sum += total;
      }
    });
  for (std::thread& caller : callers) caller.join();
  for (int64_t sum : sums) EXPECT_EQ(sum, 500 * 4950);
}

TEST(MoveThreads, ErrorsOfAnyPartAreThrown) {
  MoveThreads threads(4);
  for (int64_t bad = 0; bad < 4; ++bad) {
    EXPECT_THROW(threads.divide(4, 1,
                                [&](int64_t begin, int64_t) {
                                  if (begin == bad) fail(ErrorKind::Runtime, "part {}", bad);
                                }),
                 Error);
    int64_t after = 0;
    threads.divide(1, 1, [&](int64_t, int64_t end) { after = end; });
    EXPECT_EQ(after, 1);
  }
}

}  // namespace
}  // namespace windlass
