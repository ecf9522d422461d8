#include "windlass/runtime/rank_pulse.h"

#include <condition_variable>
#include <map>
#include <stdexcept>

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
  bool hangs_ = false, gone_ = false;
};

// A rank, and when it was told to stop.
struct TestRank {
  TestRank(int32_t rank, int32_t size, double time_out, const std::shared_ptr<TestBoard>& board)
      : pulse(std::make_shared<RankPulse>(rank, size, time_out, board, false, [this] {
          const std::lock_guard lock(mutex);
          stopped = true;
          changed.notify_all();
        })) {
    board->set(RankPulse::key_of(rank), "0");
  }
  std::string wait_for_failure() {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopped; });
    }
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
  bool stopped = false;
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
    third.pulse->throw_broken("rank 1", "closed");
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
  EXPECT_THROW(first.pulse->throw_broken("rank 1", "closed by peer"), Error);
  EXPECT_EQ(first.wait_for_failure(), "rank 1 is gone (closed by peer)");
  EXPECT_EQ(second.wait_for_failure(), "rank 1 is gone (closed by peer)");
  first.pulse->end();
  second.pulse->end();
}

}  // namespace
}  // namespace windlass
