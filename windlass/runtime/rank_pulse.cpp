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

// How long those who fail wait until it is told, and to tell others.
constexpr double kReasonSeconds = 2;
// How long after a failure a process may be at something that does not look for it.
constexpr double kEndSeconds = 5;
constexpr const char* kGoodbye = "goodbye";
constexpr const char* kFailed = "failed";

std::chrono::milliseconds pulse_pause(double s) {
  return std::chrono::milliseconds(static_cast<int64_t>(s * 1e3));
}

}  // namespace

RankPulse::RankPulse(int32_t rank, int32_t size, std::shared_ptr<NoteBoard> board, Options options)
    : rank_(rank),
      size_(size),
      board_(std::move(board)),
      options_(std::move(options)),
      last_beats_(static_cast<size_t>(size)) {}

std::string RankPulse::key_of(int32_t rank) { return fmt::format("beat/{}", rank); }

double RankPulse::interval() const { return std::clamp(options_.time_out / 20, 0.05, 0.5); }

// The file or the port of a meeting may be in the hands of a rank that has stopped.
void RankPulse::meet(double patience, bool fresh, double over) {
  guard_ = std::thread([this] { guard(); });
  wait_for_all(patience, fresh, over);
}

// Each says how many it expects, and how often its number has come.
void RankPulse::wait_for_all(double patience, bool fresh, double over) {
  const auto until = PulseClock::now() + pulse_pause(patience - over);
  const auto size_key = [](int32_t peer) { return fmt::format("size/{}", peer); };
  if (board_->count(fmt::format("come/{}", rank_)) > 1 && fresh)
    fail_meeting(fmt::format("two processes were started as rank {}", rank_));
  board_->set(size_key(rank_), std::to_string(size_));
  board_->set(key_of(rank_), "0");
  for (int32_t peer = 0; peer < size_; ++peer) {
    for (; !board_->has(key_of(peer)); ++rounds_) {
      if (board_->has(kFailed)) throw Error(ErrorKind::Runtime, board_->get(kFailed));
      if (PulseClock::now() > until) fail_missing(patience);
      std::this_thread::sleep_for(pulse_pause(0.02));
      throw_if_failed();
    }
    const std::string theirs = board_->get(size_key(peer));
    ++rounds_;
    if (theirs != std::to_string(size_))
      windlass::fail(ErrorKind::Runtime,
                     "rank {} was started as one of {} ranks, this rank {} as one of {}", peer,
                     theirs, rank_, size_);
  }
}

void RankPulse::fail_missing(double patience) {
  std::string missing;
  int count = 0;
  for (int32_t peer = 0; peer < size_; ++peer)
    if (!board_->has(key_of(peer))) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
      ++count;
    }
  fail_meeting(fmt::format("rank{} {} of {} {} not come within {} s", count == 1 ? "" : "s",
                           missing, size_, count == 1 ? "has" : "have", patience));
}

// The others learn it here: whoever keeps the board may end before they have lost their patience.
void RankPulse::fail_meeting(const std::string& message) {
  board_->set(kFailed, message);
  throw Error(ErrorKind::Runtime, message);
}

void RankPulse::begin() {
  // A thread that waits for an answer that does not come keeps what it works with.
  beats_ = std::thread([self = shared_from_this()] {
    if (self->beat()) self->say_goodbye();
    const std::lock_guard lock(self->mutex_);
    self->parted_ = true;
    self->changed_.notify_all();
  });
  if (!guard_.joinable()) guard_ = std::thread([this] { guard(); });
}

// Those who fail say so first.
void RankPulse::end() {
  {
    std::unique_lock lock(mutex_);
    if (failure_ && beats_.joinable())
      changed_.wait_for(lock, pulse_pause(kReasonSeconds), [&] { return published_ || heard_; });
    closing_ = true;
  }
  changed_.notify_all();
  if (guard_.joinable()) guard_.join();
  {
    const std::lock_guard stopping(stopping_);  // what is being stopped is
  }
  if (!beats_.joinable()) return;
  const double most = board_hangs_ ? 0 : parting_seconds() + kReasonSeconds;
  bool parted = false;
  {
    std::unique_lock lock(mutex_);
    parted = changed_.wait_for(lock, pulse_pause(most), [&] { return parted_; });
  }
  if (parted) return beats_.join();
  beats_.detach();
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
  if (options_.stop) options_.stop();
}

void RankPulse::fail(const std::string& message) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (seen_here_.empty()) seen_here_ = message;
    }
    set_failure(fmt::format("rank {} has failed: {}", rank_, message), true);
  } catch (...) {  // no memory: others notice by time
  }
}

void RankPulse::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(ErrorKind::Runtime, *failure_);
}

void RankPulse::throw_failed(const std::string& message, double patience) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pulse_pause(patience), [&] { return failure_.has_value(); });
  }
  set_failure(message, true);
  throw_if_failed();
  throw Error(ErrorKind::Internal, "a run that has failed has no reason");
}

// Counts up, and looks at the others.
bool RankPulse::beat() {
  auto looked = PulseClock::now();
  for (int64_t count = 1;; ++count) {
    std::string mine;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pulse_pause(interval()), [&] { return closing_ || unpublished_; });
      if (closing_) return true;
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
      set_failure(fmt::format("{} is gone ({})", options_.board, reason_line(error.what())), true);
      return false;
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
  if (last.silent > options_.time_out)
    set_failure(fmt::format("rank {} is lost: no sign of life for {} s", peer, options_.time_out),
                true);
}

// The board may be what does not answer, and this rank may be at what does not end.
void RankPulse::guard() {
  int64_t seen = -1;
  double silent = 0, failed = 0;
  bool told = false;
  while (true) {
    std::string failure;
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, pulse_pause(interval()), [&] { return closing_; })) return;
      if (failure_) failure = seen_here_.empty() ? *failure_ : seen_here_;
    }
    failed = failure.empty() ? 0 : failed + interval();
    if (failed > kEndSeconds && options_.stuck && !std::exchange(told, true))
      options_.stuck(Error(ErrorKind::Runtime, failure));
    const int64_t rounds = rounds_;
    silent = rounds == seen ? silent + interval() : 0;
    seen = rounds;
    if (silent <= options_.time_out || board_hangs_) continue;
    board_hangs_ = true;
    set_failure(fmt::format("{} is lost: no answer for {} s", options_.board, options_.time_out),
                true);
  }
}

double RankPulse::parting_seconds() {
  const std::lock_guard lock(mutex_);
  return failure_ ? 4 * interval() : options_.time_out;
}

// Whoever keeps the board leaves last.
void RankPulse::say_goodbye() {
  const auto until = PulseClock::now() + pulse_pause(parting_seconds());
  try {
    board_->set(key_of(rank_), kGoodbye);
    for (int32_t peer = 1; options_.keeps_board && peer < size_; ++peer)
      while (board_->get(key_of(peer)) != kGoodbye && PulseClock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const std::exception&) {  // they are gone: so be it
  }
}

}  // namespace windlass
