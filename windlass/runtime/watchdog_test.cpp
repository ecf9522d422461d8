#include "windlass/runtime/watchdog.h"

#include <gtest/gtest.h>

namespace windlass {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

// Looks once a second for so long; how many seconds passed until `found` says so, or -1.
template <class Found>
int seconds_until(Watchdog& dog, const std::vector<int32_t>& running, int64_t left, int most,
                  Found found) {
  for (int i = 1; i <= most; ++i)
    if (found(dog.look(kSecond, running, left))) return i;
  return -1;
}

const auto kLate = [](const Watchdog::Findings& found) { return !found.late.empty(); };
const auto kStalled = [](const Watchdog::Findings& found) { return found.stalled; };

TEST(Watchdog, ATaskIsLateByItsPredictionAndNotBeforeTheFloor) {
  // Job 0 is predicted to take 1 ms, job 1 to take 3 s: late after 30 s, and after 20 * 3 s.
  Watchdog dog({.late_factor = 20, .late_after = 30}, {1'000'000, 3 * kSecond});
  dog.begin_step();
  EXPECT_EQ(dog.interval(), kSecond);
  EXPECT_EQ(seconds_until(dog, {0, 1}, 2, 100, kLate), 32);  // seen since the first look
  EXPECT_EQ(seconds_until(dog, {0, 1}, 2, 100, kLate), 30);
  // Of each only once in a run.
  EXPECT_EQ(seconds_until(dog, {0, 1}, 2, 100, kLate), -1);
  dog.begin_step();
  EXPECT_EQ(seconds_until(dog, {0, 1}, 2, 100, kLate), -1);
}

TEST(Watchdog, AStandstillIsOneOfAllJobs) {
  Watchdog dog({.give_up_after = 60}, std::vector<Nanoseconds>(100, 1000));
  dog.begin_step();
  // Job 0 hangs, others go on beside it.
  for (int32_t job = 1; job < 100; ++job)
    for (int i = 0; i < 30; ++i)
      EXPECT_FALSE(dog.look(kSecond, std::vector<int32_t>{0, job}, 100 - job).stalled);
  EXPECT_EQ(seconds_until(dog, {0}, 1, 100, kStalled), 62);
  EXPECT_EQ(dog.lasts(0), (99 * 30 + 62 - 1) * kSecond);
}

TEST(Watchdog, ALongTaskIsNoStandstill) {
  // 20 * 10 s is longer than a minute.
  Watchdog dog({.late_factor = 20, .give_up_after = 60}, {10 * kSecond});
  dog.begin_step();
  EXPECT_EQ(seconds_until(dog, {0}, 1, 1000, kStalled), 202);
}

TEST(Watchdog, TimeInWhichItWasNotLetRunDoesNotCount) {
  Watchdog dog({.late_after = 30, .give_up_after = 60}, {1000});
  dog.begin_step();
  for (int i = 0; i < 15; ++i) {
    const auto found = dog.look(3600 * kSecond, std::vector<int32_t>{0}, 1);
    EXPECT_FALSE(found.stalled);
    EXPECT_TRUE(found.late.empty());
  }
}

TEST(Watchdog, ZeroIsNever) {
  Watchdog dog({.late_after = 0, .give_up_after = 0, .grace = 0}, {1000});
  dog.begin_step();
  EXPECT_EQ(seconds_until(dog, {0}, 1, 10000, kLate), -1);
  EXPECT_EQ(seconds_until(dog, {0}, 1, 10000, kStalled), -1);
}

TEST(Watchdog, AtTheEndItWaitsForTheGraceAlone) {
  Watchdog dog({.give_up_after = 600, .grace = 5}, {1000 * kSecond});
  dog.begin_step();
  dog.look(kSecond, std::vector<int32_t>{0}, 1);
  dog.expect_end();
  EXPECT_EQ(seconds_until(dog, {0}, 1, 100, kStalled), 6);
}

}  // namespace
}  // namespace windlass
