#include "windlass/runtime/rank_pulse.h"

#include <condition_variable>
#include <map>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// Notes of ranks that are threads. May stop to answer, or be gone.
class TestBoard final : public NoteBoard {
 public:
  void set(const std::string& key, const std::string& text) override {
    std::unique_lock lock(mutex_);
    come(lock);
    notes_[key] = text;
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    come(lock);
    return notes_[key];
  }
  bool has(const std::string& key) override {
    std::unique_lock lock(mutex_);
    come(lock);
    return notes_.contains(key);
  }
  int64_t count(const std::string& key) override {
    std::unique_lock lock(mutex_);
    come(lock);
    return ++counts_[key];
  }
  void hang(bool whether) {
    const std::lock_guard lock(mutex_);
    hangs_ = whether;
    changed_.notify_all();
  }
  void go() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }

 private:
  void come(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return !hangs_; });
    if (gone_) throw std::runtime_error("connection reset");
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> notes_;
  std::map<std::string, int64_t> counts_;
  bool hangs_ = false, gone_ = false;
};

// A rank, and when it was told to stop.
struct TestRank {
  TestRank(int32_t rank, int32_t size, double time_out, const std::shared_ptr<TestBoard>& board)
      : pulse(std::make_shared<RankPulse>(rank, size, board, options(time_out))) {
    board->set(RankPulse::key_of(rank), "0");
  }
  RankPulse::Options options(double time_out) {
    RankPulse::Options made = {.time_out = time_out};
    made.stop = [this] { note(stopped); };
    made.stuck = [this](const Error& error) {
      said = error.message();
      note(stuck);
    };
    return made;
  }
  void note(bool& what) {
    const std::lock_guard lock(mutex);
    what = true;
    changed.notify_all();
  }
  void wait_for(const bool& what) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return what; });
  }
  std::string wait_for_failure() {
    wait_for(stopped);
    try {
      pulse->throw_if_failed();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Runtime);
      return error.message();
    }
    return "nothing";
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false, stuck = false;
  std::string said;  // by the one that is stuck
  std::shared_ptr<RankPulse> pulse;
};

TEST(RankPulse, TheReasonComesToAll) {
  const auto board = std::make_shared<TestBoard>();
  TestRank first(0, 3, 60, board), second(1, 3, 60, board), third(2, 3, 60, board);
  for (TestRank* rank : {&first, &second, &third}) rank->pulse->begin();
  EXPECT_NO_THROW(first.pulse->throw_if_failed());
  second.pulse->fail("the disk is full");
  second.pulse->fail("and something else");
  for (TestRank* rank : {&first, &second, &third})
    EXPECT_EQ(rank->wait_for_failure(), "rank 1 has failed: the disk is full");
  // A connection that breaks afterwards is no news.
  try {
    third.pulse->throw_failed("rank 1 is gone (closed)");
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "rank 1 has failed: the disk is full");
  }
  for (TestRank* rank : {&first, &second, &third}) rank->pulse->end();
}

// It has set its key, and never counts.
TEST(RankPulse, ARankThatStandsStillIsLost) {
  const auto board = std::make_shared<TestBoard>();
  TestRank first(0, 2, 0.3, board), still(1, 2, 0.3, board);
  first.pulse->begin();
  EXPECT_EQ(first.wait_for_failure(), "rank 1 is lost: no sign of life for 0.3 s");
  first.pulse->end();
}

TEST(RankPulse, WhoHasSaidGoodbyeIsNotLost) {
  const auto board = std::make_shared<TestBoard>();
  TestRank first(0, 2, 0.2, board), second(1, 2, 0.2, board);
  first.pulse->begin();
  second.pulse->begin();
  second.pulse->end();
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_NO_THROW(first.pulse->throw_if_failed());
  first.pulse->end();
}

TEST(RankPulse, ABoardThatIsGoneOrHangsEndsTheRun) {
  const auto gone = std::make_shared<TestBoard>();
  TestRank first(0, 1, 60, gone);
  first.pulse->begin();
  gone->go();
  EXPECT_EQ(first.wait_for_failure(), "rank 0, where all meet, is gone (connection reset)");
  first.pulse->end();

  const auto hangs = std::make_shared<TestBoard>();
  TestRank second(0, 1, 0.3, hangs);
  second.pulse->begin();
  hangs->hang(true);
  EXPECT_EQ(second.wait_for_failure(), "rank 0, where all meet, is lost: no answer for 0.3 s");
  // The thread that waits for the board is left alone, and comes back when it can.
  second.pulse->end();
  hangs->hang(false);
}

TEST(RankPulse, ABrokenConnectionNamesItsRank) {
  const auto board = std::make_shared<TestBoard>();
  TestRank first(0, 2, 60, board), second(1, 2, 60, board);
  first.pulse->begin();
  second.pulse->begin();
  EXPECT_THROW(first.pulse->throw_failed("rank 1 is gone (closed by peer)"), Error);
  EXPECT_EQ(first.wait_for_failure(), "rank 1 is gone (closed by peer)");
  EXPECT_EQ(second.wait_for_failure(), "rank 1 is gone (closed by peer)");
  first.pulse->end();
  second.pulse->end();
}

// Whoever is at something that does not look for it: what it has seen itself is told, if it has.
TEST(RankPulse, WhoDoesNotEndIsEnded) {
  const auto board = std::make_shared<TestBoard>();
  TestRank busy(0, 2, 60, board), other(1, 2, 60, board);
  for (TestRank* rank : {&busy, &other}) rank->pulse->begin();
  other.pulse->fail("the disk is full");
  other.pulse->end();
  busy.wait_for(busy.stopped);
  busy.pulse->fail("sum of gradients: rank 1 has failed: the disk is full");
  busy.wait_for(busy.stuck);
  EXPECT_EQ(busy.said, "sum of gradients: rank 1 has failed: the disk is full");
  EXPECT_FALSE(other.stuck);
  busy.pulse->end();
}

std::string end_of_meeting(RankPulse& pulse, double patience, double over = 0) {
  try {
    pulse.meet(patience, true, over);
  } catch (const Error& error) {
    return error.message();
  }
  return "all are there";
}

// Ranks that meet, each by a thread of its own; by rank, what came of it.
std::vector<std::string> ends_of_meeting(const std::vector<std::pair<int32_t, int32_t>>& ranks) {
  const auto board = std::make_shared<TestBoard>();
  std::vector<std::string> ends(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      const auto pulse =
          std::make_shared<RankPulse>(ranks[i].first, ranks[i].second, board, RankPulse::Options());
      ends[i] = end_of_meeting(*pulse, 1);
      pulse->end();
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// A program that took an hour to start has waited long enough.
TEST(RankPulse, WhatHasPassedOfThePatienceCounts) {
  const auto board = std::make_shared<TestBoard>();
  const auto pulse = std::make_shared<RankPulse>(0, 2, board, RankPulse::Options());
  EXPECT_EQ(end_of_meeting(*pulse, 3600, 3600), "rank 1 of 2 has not come within 3600 s");
  pulse->end();
}

TEST(RankPulse, AllMeet) {
  EXPECT_EQ(ends_of_meeting({{0, 2}, {1, 2}}), std::vector<std::string>(2, "all are there"));
  EXPECT_EQ(ends_of_meeting({{0, 3}, {2, 3}}),
            std::vector<std::string>(2, "rank 1 of 3 has not come within 1 s"));
  EXPECT_EQ(ends_of_meeting({{1, 4}}),
            std::vector<std::string>(1, "ranks 0, 2, 3 of 4 have not come within 1 s"));
  EXPECT_EQ(ends_of_meeting({{0, 3}, {1, 3}, {1, 3}}),
            std::vector<std::string>(3, "two processes were started as rank 1"));
  EXPECT_EQ(ends_of_meeting({{0, 2}, {1, 3}})[0],
            "rank 1 was started as one of 3 ranks, this rank 0 as one of 2");
}

// A rank that stops while it has the board keeps the others there.
TEST(RankPulse, AMeetingThatHangsIsEnded) {
  const auto board = std::make_shared<TestBoard>();
  TestRank rank(0, 2, 0.3, board);
  std::thread meeting([&] { EXPECT_EQ(end_of_meeting(*rank.pulse, 60), rank.said); });
  board->hang(true);
  rank.wait_for(rank.stuck);
  EXPECT_EQ(rank.said, "rank 0, where all meet, is lost: no answer for 0.3 s");
  board->hang(false);
  meeting.join();
  rank.pulse->end();
}

}  // namespace
}  // namespace windlass
