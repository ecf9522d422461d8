// The watchdog of a step: which of the jobs under way are late against their prediction, and
// whether nothing goes on any more.
//
// It is told how much time has passed, and has no clock of its own. Time counts as far as the
// watchdog itself was let run: a process that was stopped for an hour, or starved by others, is not
// an hour late.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "windlass/run/training.h"

namespace windlass {

class Watchdog {
 public:
  // `predicted`: what each job takes.
  Watchdog(const WatchOptions& options, std::vector<Nanoseconds> predicted);

  // How long to wait between looks.
  Nanoseconds interval() const { return interval_; }

  void begin_step();

  struct Late {
    int32_t job = -1;
    Nanoseconds lasts = 0, predicted = 0;
  };
  struct Findings {
    std::vector<Late> late;     // those that were not yet told of in this run
    bool stalled = false;       // nothing has started or ended for too long
    Nanoseconds unchanged = 0;  // so long
  };
  // `elapsed` since the last look or the beginning of the step; the jobs that threads are at,
  // ascending; how many have not ended.
  Findings look(Nanoseconds elapsed, std::span<const int32_t> running, int64_t left);

  // Nothing new is started any more: so long may those take that are under way.
  void expect_end();
  // How long a job that is under way has been seen to be.
  Nanoseconds lasts(int32_t job) const;
  Nanoseconds predicted(int32_t job) const { return predicted_[static_cast<size_t>(job)]; }

 private:
  Nanoseconds late_after(int32_t job) const;

  const WatchOptions options_;
  const std::vector<Nanoseconds> predicted_;
  Nanoseconds interval_ = 0;
  Nanoseconds now_ = 0;      // of the step, as it counts
  Nanoseconds changed_ = 0;  // when something started or ended last
  int64_t left_ = -1;
  std::map<int32_t, Nanoseconds> seen_;  // by job under way: since when
  std::vector<bool> told_;               // by job
  bool ending_ = false;
};

}  // namespace windlass
