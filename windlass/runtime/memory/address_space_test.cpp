#include "windlass/runtime/memory/address_space.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"

namespace windlass {
namespace {

TEST(AddressSpace, NeighboursThatComeBackAreOneRange) {
  AddressSpace space(1 << 20);
  std::byte* a = space.take(100'000);
  std::byte* b = space.take(100'000);
  std::byte* c = space.take(64);
  ASSERT_TRUE(a != nullptr && b != nullptr && c != nullptr);
  const size_t both = static_cast<size_t>(c - a);
  space.give_back(a, 100'000);
  EXPECT_GT(space.take(both), c);  // not there yet
  space.give_back(b, 100'000);
  EXPECT_EQ(space.take(both), a);
}

TEST(AddressSpace, WhatIsIdleAtTheEndIsMadeLonger) {
  AddressSpace space(1 << 20);
  std::byte* a = space.take(100'000);
  space.give_back(a, 100'000);
  EXPECT_EQ(space.take(400'000), a);
}

TEST(AddressSpace, TheShortestRangeThatIsLongEnough) {
  AddressSpace space(1 << 20);
  std::byte* a = space.take(6400);
  space.take(64);
  std::byte* b = space.take(640);
  space.take(64);
  std::byte* c = space.take(640);
  space.take(64);
  space.give_back(a, 6400);
  space.give_back(c, 640);
  space.give_back(b, 640);
  EXPECT_EQ(space.take(640), b);  // the lower one of those that are equal
  EXPECT_EQ(space.take(576), c);
  EXPECT_EQ(space.take(128), a);  // longer than what is left of c
  EXPECT_EQ(space.take(64), c + 576);
  EXPECT_EQ(space.take(6400 - 128), a + 128);
}

TEST(AddressSpace, PagesAreKeptAsLongAsTheyAreAllowed) {
  constexpr int64_t kAllowed = 1 << 20;
  AddressSpace space(kAllowed);
  std::byte* a = space.take(kAllowed / 2);
  std::memset(a, 1, kAllowed / 2);
  space.give_back(a, kAllowed / 2);
  EXPECT_EQ(space.resident(), kAllowed / 2);
  std::byte* again = space.take(kAllowed / 2);
  EXPECT_EQ(again, a);
  EXPECT_EQ(again[100], std::byte{1});  // nobody took it away
  // Twice as much is there than may be: what is idle goes.
  space.give_back(again, kAllowed / 2);
  std::byte* more = space.take(2 * kAllowed);
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(space.resident(), 2 * kAllowed);
  space.give_back(more, 2 * kAllowed);
  space.trim();
  EXPECT_EQ(space.resident(), 0);
}

// Ranges never overlap, hold what was written to them, and pages are never more than those in use
// and those allowed.
TEST(AddressSpace, RandomRanges) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    constexpr int64_t kAllowed = 1 << 18;
    AddressSpace space(kAllowed);
    struct Held {
      std::byte* at;
      size_t bytes;
      std::byte mark;
    };
    std::vector<Held> held;
    int64_t pages = 0;  // at most, of what is held
    const auto at_most = [](size_t bytes) { return static_cast<int64_t>(bytes / 4096 + 2) * 4096; };
    for (int i = 0; i < 3000; ++i) {
      if (!held.empty() && rng.chance(0.5)) {
        const auto k = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(held.size()) - 1));
        for (size_t j = 0; j < held[k].bytes; ++j) ASSERT_EQ(held[k].at[j], held[k].mark);
        space.give_back(held[k].at, held[k].bytes);
        pages -= at_most(held[k].bytes);
        held[k] = held.back();
        held.pop_back();
        continue;
      }
      if (held.size() > 40) continue;
      const auto bytes = static_cast<size_t>(rng.integer(1, rng.chance(0.25) ? 60'000 : 900));
      std::byte* at = space.take(bytes);
      ASSERT_NE(at, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0u);
      const auto mark = static_cast<std::byte>(rng.integer(0, 255));
      std::memset(at, static_cast<int>(mark), bytes);
      held.push_back({at, bytes, mark});
      pages += at_most(bytes);
      // Pages that idle ranges have in part cannot go.
      ASSERT_LE(space.resident(), std::max(kAllowed, pages + 3 * 4096 * 42));
    }
    for (const Held& range : held) space.give_back(range.at, range.bytes);
    EXPECT_NE(space.take(1), nullptr);
  }
}

}  // namespace
}  // namespace windlass
