#include "windlass/data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

std::vector<int64_t> take(Sampler& sampler, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < count; ++i) samples.push_back(sampler.next());
  return samples;
}

TEST(Permutation, IsABijectionForAnySize) {
  std::vector<int64_t> sizes(200);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {255, 256, 257, 1023, 1024, 1025, 4097, 65536, 65537});
  for (const int64_t size : sizes) {
    for (const uint64_t key : {0u, 1u, 77u}) {
      std::vector<bool> seen(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t to = permuted(i, size, key);
        ASSERT_TRUE(to >= 0 && to < size && !seen[static_cast<size_t>(to)]) << size << " " << i;
        seen[static_cast<size_t>(to)] = true;
      }
    }
  }
}

TEST(Permutation, ReachesTheLargestSizes) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  for (const int64_t size : {largest, largest / 2 + 2, int64_t{1} << 40}) {
    for (const int64_t index : {int64_t{0}, size / 2, size - 1}) {
      const int64_t to = permuted(index, size, 5);
      EXPECT_TRUE(to >= 0 && to < size);
    }
  }
}

TEST(Permutation, Mixes) {
  // Of n random places about one stays; neighbours are rarely neighbours again.
  constexpr int64_t kSize = 10'000;
  int64_t fixed = 0, neighbours = 0, low = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i) {
    const int64_t a = permuted(i, kSize, 3), b = permuted(i + 1, kSize, 3);
    fixed += a == i ? 1 : 0;
    neighbours += std::abs(a - b) == 1 ? 1 : 0;
    low += i < kSize / 2 && a < kSize / 2 ? 1 : 0;
  }
  EXPECT_LT(fixed, 10);
  EXPECT_LT(neighbours, 20);
  // A quarter, with a standard deviation of about 25.
  EXPECT_NEAR(static_cast<double>(low), kSize / 4.0, 200);
}

TEST(Sampler, EveryEpochHasAllSamplesInAnotherOrder) {
  Sampler sampler(100, 7);
  std::vector<int64_t> first = take(sampler, 100);
  EXPECT_EQ(sampler.position(), (SamplerPosition{1, 0}));
  std::vector<int64_t> second = take(sampler, 100);
  EXPECT_NE(first, second);
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), 0);
  for (auto* order : {&first, &second}) {
    EXPECT_NE(*order, all);
    std::sort(order->begin(), order->end());
    EXPECT_EQ(*order, all);
  }
  Sampler plain(3, 7, false);
  EXPECT_EQ(take(plain, 5), (std::vector<int64_t>{0, 1, 2, 0, 1}));
}

TEST(Sampler, GoesOnWhereItWas) {
  Sampler whole(17, 3);
  const std::vector<int64_t> expected = take(whole, 60);
  for (int64_t stop = 0; stop <= 60; ++stop) {
    Sampler before(17, 3);
    std::vector<int64_t> samples = take(before, stop);
    Sampler after(17, 3, true, before.position());
    const std::vector<int64_t> rest = take(after, 60 - stop);
    samples.insert(samples.end(), rest.begin(), rest.end());
    ASSERT_EQ(samples, expected) << stop;
    Sampler skipped(17, 3);
    skipped.skip(stop);
    EXPECT_EQ(skipped.position(), before.position());
  }
}

TEST(Sampler, RefusesPositionsOfOtherData) {
  EXPECT_THROW(Sampler(0, 1), Error);
  EXPECT_THROW(Sampler(10, 1, true, {0, 10}), Error);
  EXPECT_THROW(Sampler(10, 1, true, {-1, 0}), Error);
  EXPECT_THROW(Sampler(10, 1, true, {0, -1}), Error);
  Sampler huge(std::numeric_limits<int64_t>::max(), 1);
  huge.skip(std::numeric_limits<int64_t>::max() - 1);
  huge.skip(std::numeric_limits<int64_t>::max() - 1);
  EXPECT_EQ(huge.position(), (SamplerPosition{1, std::numeric_limits<int64_t>::max() - 2}));
}

}  // namespace
}  // namespace windlass
