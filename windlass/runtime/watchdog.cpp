#include "windlass/runtime/watchdog.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace windlass {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

// Seconds of any size; 0 and less is never.
Nanoseconds as_limit(double seconds) {
  constexpr double kMost = 1e9;
  return seconds <= 0 || seconds >= kMost ? kNever : static_cast<Nanoseconds>(seconds * 1e9);
}

}  // namespace

Watchdog::Watchdog(const WatchOptions& options, std::vector<Nanoseconds> predicted)
    : options_(options), predicted_(std::move(predicted)), told_(predicted_.size()) {
  constexpr Nanoseconds kLongest = 1'000'000'000, kShortest = 1'000'000;
  const Nanoseconds least = std::min(
      {as_limit(options.late_after), as_limit(options.give_up_after), as_limit(options.grace)});
  interval_ = std::clamp(least / 4, kShortest, kLongest);
}

void Watchdog::begin_step() {
  now_ = changed_ = 0;
  left_ = -1;
  seen_.clear();
  ending_ = false;
}

Nanoseconds Watchdog::late_after(int32_t job) const {
  const Nanoseconds least = as_limit(options_.late_after);
  const double scaled = options_.late_factor * static_cast<double>(predicted(job)) * 1e-9;
  return least == kNever ? kNever : std::max(least, as_limit(std::max(scaled, 1e-9)));
}

Watchdog::Findings Watchdog::look(Nanoseconds elapsed, std::span<const int32_t> running,
                                  int64_t left) {
  now_ += std::min(elapsed, 2 * interval_);
  bool changed = left != std::exchange(left_, left) || running.size() != seen_.size();
  std::map<int32_t, Nanoseconds> seen;
  for (int32_t job : running) {
    const auto before = seen_.find(job);
    changed |= before == seen_.end();
    seen[job] = before == seen_.end() ? now_ : before->second;
  }
  seen_ = std::move(seen);
  if (changed) changed_ = now_;
  Findings found;
  Nanoseconds patience = ending_ ? as_limit(options_.grace) : as_limit(options_.give_up_after);
  for (const auto& [job, since] : seen_) {
    const double scaled = options_.late_factor * static_cast<double>(predicted(job)) * 1e-9;
    if (!ending_ && patience != kNever)
      patience = std::max(patience, as_limit(std::max(scaled, 1e-9)));
    if (ending_ || told_[static_cast<size_t>(job)] || now_ - since <= late_after(job)) continue;
    told_[static_cast<size_t>(job)] = true;
    found.late.push_back({job, now_ - since, predicted(job)});
  }
  found.unchanged = now_ - changed_;
  found.stalled = found.unchanged > patience;
  return found;
}

void Watchdog::expect_end() {
  ending_ = true;
  changed_ = now_;
}

Nanoseconds Watchdog::lasts(int32_t job) const {
  const auto found = seen_.find(job);
  return found == seen_.end() ? 0 : now_ - found->second;
}

}  // namespace windlass
