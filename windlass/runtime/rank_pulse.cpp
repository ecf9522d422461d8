#include "windlass/runtime/rank_pulse.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/runtime/join_ranks.h"

namespace windlass {
namespace {

using PulseClock = std::chrono::steady_clock;

// How long a connection that has broken waits for the reason.
constexpr double kReasonSeconds = 2;
constexpr const char* kGoodbye = "goodbye";
constexpr const char* kFailed = "failed";

std::chrono::milliseconds pulse_pause(double s) {
  return std::chrono::milliseconds(static_cast<int64_t>(s * 1e3));
}

}  // namespace

RankPulse::RankPulse(int32_t rank, int32_t size, double time_out, std::shared_ptr<NoteBoard> board,
                     bool keeps_board, std::function<void()> stop)
    : rank_(rank),
      size_(size),
      time_out_(time_out),
      board_(std::move(board)),
      keeps_board_(keeps_board),
      stop_(std::move(stop)),
      last_beats_(static_cast<size_t>(size)) {}

std::string RankPulse::key_of(int32_t rank) { return fmt::format("beat/{}", rank); }

double RankPulse::interval() const { return std::clamp(time_out_ / 20, 0.05, 0.5); }

void RankPulse::begin() {
  // A thread that waits for an answer that does not come keeps what it works with.
  beats_ = std::thread([self = shared_from_this()] { self->beat(); });
  guard_ = std::thread([this] { guard(); });
}

// Those who fail say so first.
void RankPulse::end() {
  {
    std::unique_lock lock(mutex_);
    if (failure_)
      changed_.wait_for(lock, pulse_pause(kReasonSeconds), [&] { return published_ || heard_; });
    closing_ = true;
  }
  changed_.notify_all();
  guard_.join();
  {
    const std::lock_guard stopping(stopping_);  // what is being stopped is
  }
  if (board_hangs_) return beats_.detach();
  beats_.join();
  say_goodbye();
}

void RankPulse::set_failure(const std::string& message, bool news) {
  {
    const std::lock_guard lock(mutex_);
    if (!news) heard_ = true;
    if (failure_ || closing_) return;
    failure_ = message;
    unpublished_ = news;
  }
  changed_.notify_all();
  const std::lock_guard stopping(stopping_);
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
  }
  stop_();
}

void RankPulse::fail(const std::string& message) noexcept {
  try {
    set_failure(fmt::format("rank {} has failed: {}", rank_, message), true);
  } catch (...) {  // no memory: others notice by time
  }
}

void RankPulse::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(ErrorKind::Runtime, *failure_);
}

void RankPulse::throw_broken(const std::string& peer, const std::string& how) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pulse_pause(kReasonSeconds), [&] { return failure_.has_value(); });
  }
  set_failure(fmt::format("{} is gone ({})", peer, how), true);
  throw_if_failed();
  throw Error(ErrorKind::Internal, "a run that has failed has no reason");
}

// Counts up, and looks at the others.
void RankPulse::beat() {
  auto looked = PulseClock::now();
  for (int64_t count = 1;; ++count) {
    std::string mine;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pulse_pause(interval()), [&] { return closing_ || unpublished_; });
      if (closing_) return;
      if (std::exchange(unpublished_, false)) mine = *failure_;
    }
    try {
      board_->set(key_of(rank_), std::to_string(count));
      const bool known = board_->has(kFailed);
      if (!mine.empty() && !known) board_->set(kFailed, mine);
      if (mine.empty() && known) set_failure(board_->get(kFailed), false);
      const auto when = PulseClock::now();
      // A process that was stopped itself has not seen the others stand still.
      const double passed =
          std::min(std::chrono::duration<double>(when - looked).count(), 2 * interval());
      looked = when;
      for (int32_t peer = 0; peer < size_; ++peer)
        if (peer != rank_) look_at(peer, passed);
    } catch (const std::exception& error) {
      return set_failure(
          fmt::format("rank 0, where all meet, is gone ({})", reason_line(error.what())), true);
    }
    ++rounds_;
    if (mine.empty()) continue;
    {
      const std::lock_guard lock(mutex_);
      published_ = true;
    }
    changed_.notify_all();
  }
}

void RankPulse::look_at(int32_t peer, double passed) {
  Beat& last = last_beats_[static_cast<size_t>(peer)];
  const std::string found = board_->get(key_of(peer));
  if (found != last.text) {
    last = {found, 0};
    return;
  }
  if (found == kGoodbye) return;
  last.silent += passed;
  if (last.silent > time_out_)
    set_failure(fmt::format("rank {} is lost: no sign of life for {} s", peer, time_out_), true);
}

// The board may be what does not answer.
void RankPulse::guard() {
  int64_t seen = -1;
  double silent = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, pulse_pause(interval()), [&] { return closing_; })) return;
    }
    const int64_t rounds = rounds_;
    silent = rounds == seen ? silent + interval() : 0;
    seen = rounds;
    if (silent <= time_out_) continue;
    board_hangs_ = true;
    set_failure(fmt::format("rank 0, where all meet, is lost: no answer for {} s", time_out_),
                true);
  }
}

// Whoever keeps the board leaves last.
void RankPulse::say_goodbye() {
  const auto until = PulseClock::now() + pulse_pause(failure_ ? 4 * interval() : time_out_);
  try {
    board_->set(key_of(rank_), kGoodbye);
    for (int32_t peer = 1; keeps_board_ && peer < size_; ++peer)
      while (board_->get(key_of(peer)) != kGoodbye && PulseClock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const std::exception&) {  // they are gone: so be it
  }
}

}  // namespace windlass
