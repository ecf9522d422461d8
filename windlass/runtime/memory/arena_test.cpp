#include "windlass/runtime/memory/arena.h"

#include <cmath>
#include <cstring>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

TEST(Arena, CountsRoundedBytesAndTheirPeak) {
  Arena arena("cpu0", 4096, 512);
  void* a = arena.allocate(1);
  void* b = arena.allocate(513);
  EXPECT_EQ(arena.statistics().live, 512 + 1024);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  Arena::release(a);
  EXPECT_EQ(arena.statistics().live, 1024);
  EXPECT_EQ(arena.statistics().peak, 1536);
  arena.reset_peak();
  EXPECT_EQ(arena.statistics().peak, 1024);
  Arena::release(b);
  EXPECT_EQ(arena.statistics().live, 0);
  EXPECT_EQ(arena.statistics().blocks, 0);
}

TEST(Arena, RefusesTheByteAboveTheLimitAndSaysWhatIsAlive) {
  Arena arena("cpu0", 2048, 512);
  arena.set_context([] { return std::string("alive there: w"); });
  void* all = arena.allocate(2048);
  try {
    arena.allocate(1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
    EXPECT_THAT(error.message(),
                testing::AllOf(testing::HasSubstr("cpu0"), testing::HasSubstr("alive there: w")));
  }
  EXPECT_EQ(arena.statistics().live, 2048);
  EXPECT_EQ(arena.statistics().peak, 2048);
  Arena::release(all);
  Arena::release(arena.allocate(2048));
}

TEST(Arena, AbsurdSizesAreRefused) {
  Arena arena("cpu0", kNoLimit, 512);
  EXPECT_THROW(arena.allocate(SIZE_MAX), Error);
  EXPECT_THROW(arena.allocate(SIZE_MAX / 2 + 3), Error);
  EXPECT_EQ(arena.statistics().live, 0);
}

// Blocks of other sizes must go before new ones come, or the process would hold more than the
// limit.
TEST(Arena, KeptBlocksMakeRoom) {
  Arena arena("cpu0", int64_t{8} << 20, 512);
  for (int64_t size = 1 << 16; size <= 8 << 20; size += 1 << 16) {
    void* block = arena.allocate(static_cast<size_t>(size));
    std::memset(block, 1, static_cast<size_t>(size));
    Arena::release(block);
  }
  EXPECT_EQ(arena.statistics().live, 0);
}

TEST(GuardedArena, BeginsAsNaNAndCountsTheSame) {
  Arena arena("cpu0", 4096, 512, true);
  auto* block = static_cast<float*>(arena.allocate(100 * sizeof(float)));
  EXPECT_TRUE(std::isnan(block[0]) && std::isnan(block[99]));
  EXPECT_EQ(arena.statistics().live, 512);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
  EXPECT_EQ(&Arena::owner(block), &arena);
  Arena::release(block);
  EXPECT_EQ(arena.statistics().live, 0);
  EXPECT_NO_THROW(arena.check_guards());
}

TEST(GuardedArena, NoticesAWriteBesideABlock) {
  Arena arena("cpu0", 1 << 20, 512, true);
  auto* block = static_cast<std::byte*>(arena.allocate(100));
  block[100] = std::byte{0};
  Arena::release(block);
  EXPECT_THROW(arena.check_guards(), Error);
}

TEST(GuardedArenaDeathTest, CatchesUseAfterReleaseAndBeyondTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Arena arena("cpu0", 1 << 20, 512, true);
  auto* block = static_cast<volatile char*>(arena.allocate(128));
  const auto touch = [&](size_t at) {
    report_bad_accesses();
    doing("backward of conv1");
    block[at] = 1;
  };
  EXPECT_EXIT(touch(128), testing::ExitedWithCode(4), "memory was used .* by backward of conv1");
  Arena::release(const_cast<char*>(block));
  EXPECT_EXIT(touch(0), testing::ExitedWithCode(4), "memory was used .* by backward of conv1");
}

TEST(Arena, ServesManyThreads) {
  Arena arena("cpu0", int64_t{64} << 20, 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&arena, t] {
      std::vector<void*> held;
      for (int i = 0; i < 2000; ++i) {
        held.push_back(arena.allocate(static_cast<size_t>(64 * (1 + (i * 7 + t) % 50))));
        if (held.size() > 20) {
          Arena::release(held[static_cast<size_t>(i) % 20]);
          held.erase(held.begin() + i % 20);
        }
      }
      for (void* block : held) Arena::release(block);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.statistics().live, 0);
  EXPECT_EQ(arena.statistics().blocks, 0);
}

TEST(TorchAllocator, CountsWhatLibtorchTakesForTheThread) {
  install_allocator();
  Arena arena("cpu0", 1 << 20, 512);
  at::Tensor outside = at::ones({1000});
  {
    const ArenaScope scope(arena);
    at::Tensor inside = at::ones({1000});
    EXPECT_EQ(arena.statistics().live, 4096);
    const at::Tensor sum = at::add(inside, outside);
    EXPECT_EQ(arena.statistics().live, 8192);
    EXPECT_THROW(at::empty({1 << 20}), Error);
    EXPECT_EQ(arena.statistics().live, 8192);
  }
  EXPECT_EQ(arena.statistics().live, 0);
  const at::Tensor after = at::ones({1000});
  EXPECT_EQ(arena.statistics().live, 0);
}

// Steps of a network in exactly the memory they need: activations come and go, gradients take their
// place. Once ranges have found where they fit, few pages are given back and taken anew.
TEST(Arena, FullMemoryCostsFewPagesInTheLongRun) {
  const auto step = [](Arena& arena, bool writes) {
    constexpr size_t kKilo = 1000;
    const auto take = [&](size_t bytes) {
      void* block = arena.allocate(bytes);
      if (writes) std::memset(block, 1, bytes);
      return block;
    };
    std::vector<void*> activations, gradients;
    for (size_t layer = 0; layer < 12; ++layer)
      activations.push_back(take((130 + 17 * (layer % 5)) * kKilo));
    for (size_t layer = 12; layer-- > 0;) {
      void* workspace = take((90 + 31 * (layer % 3)) * kKilo);
      gradients.push_back(take((70 * (layer + 1)) * kKilo));
      Arena::release(workspace);
      Arena::release(activations[layer]);
    }
    for (void* gradient : gradients) Arena::release(gradient);
  };
  Arena free("free", kNoLimit, 4096);
  step(free, false);
  Arena full("full", free.statistics().peak, 4096);
  const auto faults_of = [&](int steps) {
    rusage before{}, after{};
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < steps; ++i) step(full, true);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  const int64_t pages = free.statistics().peak / 4096;
  EXPECT_GE(faults_of(1), pages / 2);
  faults_of(40);
  EXPECT_LE(faults_of(10), 10 * pages / 5);
}

// Between blocks of different sizes something is left. If there were pages for what is counted
// alone, some would go back and be taken again in every step.
TEST(Arena, FullMemoryHasPagesBetweenBlocks) {
  const auto step = [](Arena& arena) {
    const auto take = [&](size_t bytes) {
      void* block = arena.allocate(bytes);
      std::memset(block, 1, bytes);
      return block;
    };
    std::vector<void*> large, small;
    for (size_t i = 0; i < 10; ++i) {
      large.push_back(take(1'000'000));
      small.push_back(take(18'000));
    }
    for (void* block : small) Arena::release(block);
    for (size_t i = 0; i < 3; ++i) large.push_back(take(1'000'000));  // fit nowhere between
    for (void* block : large) Arena::release(block);
  };
  Arena free("free", kNoLimit, 512);
  step(free);
  Arena full("full", free.statistics().peak, 512);
  const auto faults_of = [&](int steps) {
    rusage before{}, after{};
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < steps; ++i) step(full);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  EXPECT_GE(faults_of(1), free.statistics().peak / 4096 / 2);
  // Sanitizers have faults of their own. Where there are no pages for what lies between, 740 go
  // and come back in these steps.
  EXPECT_LE(faults_of(10), 100);
}

// Loops of libtorch's headers are compiled into windlass, with a memory of their own of who has
// asked for threads; whatever they do when they run first, a device keeps the threads it was given.
TEST(ParallelLoops, LeaveTheNumberOfThreads) {
  for (const int threads : {1, 3}) {
    int first = 0, then = 0;
    std::thread device([&] {
      use_threads(threads);
      first = at::get_num_threads();
      at::parallel_for(0, 2, 1, [](int64_t, int64_t) {});
      then = at::get_num_threads();
    });
    device.join();
    EXPECT_EQ(first, threads);
    EXPECT_EQ(then, threads);
  }
}

TEST(ParallelLoops, ThreadsBelongToTheirMaster) {
  install_allocator();
  Arena arena("cpu0", 1 << 24, 512);
  std::thread device([&arena] {
    at::set_num_threads(2);
    const ArenaScope scope(arena);
    at::parallel_for(0, 2, 1, [](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) at::empty({1000});
    });
  });
  device.join();
  EXPECT_GE(arena.statistics().peak, 4096);
  EXPECT_EQ(arena.statistics().live, 0);
}

}  // namespace
}  // namespace windlass
