// Signs of life of the ranks of a run, and the news that it has failed, over notes that all can
// read.
//
// A peer that dies closes its connections, which ends what waits for it. One that is stopped, or
// cut off, does not: so each rank counts up a number on the board a few times a second, and one
// whose number stands still for the time-out is lost. How long a kernel takes is nobody's concern.
// The board itself may be kept by a rank that has stopped: a second thread looks whether the first
// one, which asks the board, comes back. That one also sees to it that the process does not outlive
// a run that has failed, whatever it is at.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "windlass/base/error.h"

namespace windlass {

// Notes that all ranks see. Calls may block while nobody answers, and throw if the board is gone.
class NoteBoard {
 public:
  virtual ~NoteBoard() = default;
  virtual void set(const std::string& key, const std::string& text) = 0;
  virtual std::string get(const std::string& key) = 0;  // waits until it is there
  virtual bool has(const std::string& key) = 0;
  virtual int64_t count(const std::string& key) = 0;  // how often it was called with this key
};

class RankPulse : public std::enable_shared_from_this<RankPulse> {
 public:
  struct Options {
    double time_out = 20;
    // Who is lost when the board does not answer.
    std::string board = "rank 0, where all meet,";
    // The board ends with this rank, which therefore leaves last.
    bool keeps_board = false;
    // Called once the run has failed, on any thread, while no lock is held: what waits for others
    // must end.
    std::function<void()> stop = {};
    // Called if end() has not been some seconds later: this rank is at something that does not look
    // whether the run has failed. Should end the process.
    std::function<void(const Error&)> stuck = {};
  };
  RankPulse(int32_t rank, int32_t size, std::shared_ptr<NoteBoard> board, Options options);

  // Returns when all ranks have come to the board. Throws Error{Runtime} naming those that do not
  // within `patience` seconds, that two processes say they are, or that expect another number of
  // ranks. `fresh`: the board has nothing of a start before this one. `over`: seconds of the
  // patience that have passed before.
  void meet(double patience, bool fresh, double over = 0);
  // All ranks have come.
  void begin();
  // Says what has failed first, and goodbye. `stop` and `stuck` are not called any more.
  void end();

  void fail(const std::string& message) noexcept;
  void throw_if_failed();
  // `message` is what is seen of a failure here: what another rank says of it within `patience`
  // seconds is nearer to its reason.
  [[noreturn]] void throw_failed(const std::string& message, double patience = 2);

  // Where a rank counts.
  static std::string key_of(int32_t rank);

 private:
  struct Beat {
    std::string text;
    double silent = 0;  // seconds
  };

  // The first one counts. Tells the others, if it is `news`.
  void set_failure(const std::string& message, bool news);
  void wait_for_all(double patience, bool fresh, double over);
  [[noreturn]] void fail_missing(double patience);
  [[noreturn]] void fail_meeting(const std::string& message);
  // False: the board is gone.
  bool beat();
  void look_at(int32_t peer, double passed);
  void guard();
  void say_goodbye();
  double interval() const;
  double parting_seconds();

  const int32_t rank_, size_;
  const std::shared_ptr<NoteBoard> board_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> failure_;
  std::string seen_here_;  // the same failure
  bool unpublished_ = false, published_ = false, heard_ = false, closing_ = false, parted_ = false;
  std::mutex stopping_;           // while `stop` is called
  std::vector<Beat> last_beats_;  // of the thread that beats
  std::atomic<int64_t> rounds_ = 0;
  std::atomic<bool> board_hangs_ = false;
  std::thread beats_, guard_;
};

}  // namespace windlass
