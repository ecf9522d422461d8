// Whether a run has come round: the state at marks of one repetition against that at the same marks
// of the next, as simulate.h says.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

// What a lane does at a moment. Lanes run in order, so the task at hand says what has ended.
struct LaneMoment {
  // Waits for the next repetition, whose first task of the lane has a predecessor that has not
  // ended; also of a lane without tasks.
  static constexpr int64_t kNextRepetition = INT64_MAX;
  // All tasks of the lane have ended, where the graph ends. If it waited for the next repetition
  // one repetition earlier, it would do so now: what is not in the graph has not started either.
  static constexpr int64_t kEnded = INT64_MAX - 1;

  int64_t task = 0;   // that runs or is next, counted from the first of the repetition
  int64_t left = 0;   // nanoseconds, or volume in units of FairShare; 0 if it does not run
  uint8_t phase = 0;  // what is left
  bool operator==(const LaneMoment&) const = default;
  bool same_as(const LaneMoment& before) const {
    if (task == kEnded) return before.task == kNextRepetition;
    return task >= 0 && *this == before;
  }
};

class Recurrence {
 public:
  // Null: nothing repeats. `lanes` is the number of them.
  void reset(const Repetition* repetition, size_t tasks, size_t lanes) {
    repetition_ = repetition && !repetition->marks.empty() ? repetition : nullptr;
    lanes_ = lanes;
    round_ = 0;
    mark_ = 0;
    pending_ = false;
    period_ = 0;
    times_.clear();
    moments_.clear();
    tasks_ = tasks;
    find_next();
  }

  void ended(uint32_t task) { pending_ |= task == next_; }
  // A mark has ended, and the state after that moment has not been looked at.
  bool pending() const { return pending_; }

  // Of the repetition that a mark has ended in: the first task, and the first of the next one.
  size_t begin() const { return round_ * repetition_->tasks; }
  size_t end() const { return begin() + repetition_->tasks; }

  // Takes what lanes do now: moment(lane), in order of lanes. True if all is as it was.
  template <typename Moment>
  bool look(Nanoseconds now, Moment&& moment) {
    pending_ = false;
    const size_t place = mark_ * lanes_;
    bool same = round_ > 0;
    if (round_ == 0) moments_.resize(place + lanes_);
    for (size_t lane = 0; lane < lanes_; ++lane) {
      const LaneMoment found = moment(lane);
      LaneMoment& before = moments_[place + lane];
      same = same && found.same_as(before);
      before = found;
    }
    if (round_ == 0) times_.push_back(now);
    period_ = now - times_[mark_];
    times_[mark_] = now;
    if (++mark_ == repetition_->marks.size()) {
      mark_ = 0;
      ++round_;
    }
    find_next();
    return same;
  }
  // Between the mark that was looked at last and the same one before; 0 if there was none.
  Nanoseconds period() const { return period_; }

 private:
  void find_next() {
    next_ = UINT32_MAX;
    if (!repetition_) return;
    const size_t task = repetition_->marks[mark_].index() + round_ * repetition_->tasks;
    if (task < tasks_) next_ = static_cast<uint32_t>(task);
  }

  const Repetition* repetition_ = nullptr;
  size_t tasks_ = 0, lanes_ = 0;
  size_t round_ = 0, mark_ = 0;  // that ends next
  uint32_t next_ = UINT32_MAX;   // its task
  bool pending_ = false;
  Nanoseconds period_ = 0;
  std::vector<Nanoseconds> times_;   // by mark, when it ended last
  std::vector<LaneMoment> moments_;  // by mark and lane
};

}  // namespace windlass
