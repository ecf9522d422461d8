// Signs of life of the ranks of a run, and the news that it has failed, over notes that all can
// read.
//
// A peer that dies closes its connections, which ends what waits for it. One that is stopped, or
// cut off, does not: so each rank counts up a number on the board a few times a second, and one
// whose number stands still for the time-out is lost. How long a kernel takes is nobody's concern.
// The board itself may be kept by a rank that has stopped: a second thread looks whether the first
// one, which asks the board, comes back.
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

namespace windlass {

// Notes that all ranks see. Calls may block while nobody answers, and throw if the board is gone.
class NoteBoard {
 public:
  virtual ~NoteBoard() = default;
  virtual void set(const std::string& key, const std::string& text) = 0;
  virtual std::string get(const std::string& key) = 0;  // waits until it is there
  virtual bool has(const std::string& key) = 0;
};

class RankPulse : public std::enable_shared_from_this<RankPulse> {
 public:
  // `keeps_board`: the board ends with this rank, which therefore leaves last. `stop` is called
  // once the run has failed, on any thread, while no lock is held: what waits for others must end.
  RankPulse(int32_t rank, int32_t size, double time_out, std::shared_ptr<NoteBoard> board,
            bool keeps_board, std::function<void()> stop);

  // All ranks have set their keys.
  void begin();
  // Says what has failed first, and goodbye. `stop` is not called any more.
  void end();

  void fail(const std::string& message) noexcept;
  void throw_if_failed();
  // The connection to `peer` ("rank 3") is gone. It may have said why.
  [[noreturn]] void throw_broken(const std::string& peer, const std::string& how);

  // Where a rank counts.
  static std::string key_of(int32_t rank);

 private:
  struct Beat {
    std::string text;
    double silent = 0;  // seconds
  };

  // The first one counts. Tells the others, if it is `news`.
  void set_failure(const std::string& message, bool news);
  void beat();
  void look_at(int32_t peer, double passed);
  void guard();
  void say_goodbye();
  double interval() const;

  const int32_t rank_, size_;
  const double time_out_;
  const std::shared_ptr<NoteBoard> board_;
  const bool keeps_board_;
  const std::function<void()> stop_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> failure_;
  bool unpublished_ = false, published_ = false, heard_ = false, closing_ = false;
  std::mutex stopping_;           // while `stop` is called
  std::vector<Beat> last_beats_;  // of the thread that beats
  std::atomic<int64_t> rounds_ = 0;
  std::atomic<bool> board_hangs_ = false;
  std::thread beats_, guard_;
};

}  // namespace windlass
