#include "windlass/search/bounds/lane_tasks.h"

#include <algorithm>
#include <utility>

#include "windlass/base/error.h"

namespace windlass {

void LaneTasks::clear() {
  tasks_.clear();
  before_.clear();
  last_.fill(-1);
  ends_ = {};
  ready_ = 0;
}

// Tasks of a lane have ended up to the one that it has reached.
inline bool LaneTasks::can_start(Running& state) const {
  if (reached_[state.blocker_lane] <= state.blocker) return false;
  for (const uint32_t end = task(state).before_end; state.waited < end; ++state.waited) {
    const int32_t before = before_[state.waited];
    const Lane lane = tasks_[static_cast<size_t>(before)].lane;
    if (before < reached_[lane]) continue;
    state.blocker = before;
    state.blocker_lane = lane;
    return false;
  }
  return true;
}

inline void LaneTasks::turn_to(Running& state, int32_t task) const {
  state.phase = Phase::Idle;
  state.due = INT64_MAX;
  state.task = task;
  state.blocker = -1;
  state.waited = task <= 0 ? 0 : tasks_[static_cast<size_t>(task) - 1].before_end;
}

inline void LaneTasks::start(Running& state, Nanoseconds now) {
  const Task& begun = task(state);
  const bool shares = begun.flow != nullptr && begun.flow->volume > 0;
  state.phase = shares ? Phase::Latency : Phase::Fixed;
  state.due = now + (shares ? begun.flow->latency : begun.duration);
  if (state.due > now) return;
  state.phase = Phase::Traffic;
  state.remaining = begun.flow->volume;
  state.rate = 0;
  shared_ = true;
}

// Rates of all traffic, after some came or went.
void LaneTasks::share(TrafficRates& rates, Nanoseconds now) {
  shared_ = false;
  std::array<Running*, kLanes> moving;
  std::array<int32_t, kLanes> links;
  size_t count = 0;
  for (size_t i = 0; i < running_count_; ++i) {
    if (running_[i].phase != Phase::Traffic) continue;
    links[count] = task(running_[i]).flow->links;
    moving[count++] = &running_[i];
  }
  if (count == 0) return;
  const int64_t alone = task(*moving[0]).flow->rate;
  const int64_t* all = count == 1 ? &alone : rates.together({links.data(), count});
  for (size_t i = 0; i < count; ++i) {
    Running& state = *moving[i];
    if (state.rate == all[i]) continue;
    state.remaining -= state.rate * (now - state.since);
    state.since = now;
    state.rate = all[i];
    state.due = now + (state.remaining + state.rate - 1) / state.rate;
  }
}

// From moment to moment: what ends, then what starts, then the rates.
Nanoseconds LaneTasks::run(TrafficRates& rates) {
  std::array<int32_t, kLanes> first;
  first.fill(-1);
  reached_.fill(static_cast<int32_t>(tasks_.size()));
  following_.assign(tasks_.size(), -1);
  for (size_t i = tasks_.size(); i-- > 0;)
    following_[i] = std::exchange(first[tasks_[i].lane], static_cast<int32_t>(i));
  running_count_ = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (first[lane] < 0) continue;
    Running& state = running_[running_count_++];
    state.lane = static_cast<Lane>(lane);
    turn_to(state, first[lane]);
    reached_[lane] = first[lane];
  }
  shared_ = false;
  Nanoseconds now = 0;
  while (running_count_ > 0) {
    Nanoseconds next = INT64_MAX;
    for (size_t i = 0; i < running_count_; ++i) {
      Running& state = running_[i];
      if (state.phase == Phase::Idle && can_start(state)) start(state, now);
      next = std::min(next, state.due);
    }
    if (shared_) {
      share(rates, now);
      next = INT64_MAX;
      for (size_t i = 0; i < running_count_; ++i) next = std::min(next, running_[i].due);
    }
    ensure(next != INT64_MAX, "tasks of a lane wait for each other");
    now = next;
    for (size_t i = 0; i < running_count_;) {
      Running& state = running_[i++];
      if (state.due != now) continue;
      if (state.phase == Phase::Latency) {
        state.phase = Phase::Traffic;
        state.due = INT64_MAX;
        state.remaining = task(state).flow->volume;
        state.rate = 0;
        shared_ = true;
        continue;
      }
      shared_ = shared_ || state.phase == Phase::Traffic;
      const int32_t following = following_[static_cast<size_t>(state.task)];
      reached_[state.lane] = following >= 0 ? following : static_cast<int32_t>(tasks_.size());
      if (following >= 0)
        turn_to(state, following);
      else
        state = running_[--running_count_], --i;
    }
  }
  return now;
}

}  // namespace windlass
