#include "windlass/search/bounds/lane_tasks.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {

void LaneTasks::clear() {
  tasks_.clear();
  before_.clear();
  for (auto& lane : lanes_) lane.clear();
  ends_ = {};
  ready_ = 0;
}

int32_t LaneTasks::add(Lane lane, Nanoseconds alone, const Flow* flow) {
  const auto id = static_cast<int32_t>(tasks_.size());
  ends_[lane] = std::max(ends_[lane], ready_) + alone;
  tasks_.push_back({lane, flow, alone, ends_[lane], static_cast<uint32_t>(before_.size())});
  lanes_[lane].push_back(id);
  ready_ = 0;
  return id;
}

bool LaneTasks::can_start(size_t lane) const {
  if (running_[lane].next == lanes_[lane].size()) return false;
  const auto id = static_cast<size_t>(lanes_[lane][running_[lane].next]);
  for (uint32_t i = id == 0 ? 0 : tasks_[id - 1].before_end; i < tasks_[id].before_end; ++i)
    if (ended_[static_cast<size_t>(before_[i])] == 0) return false;
  return true;
}

void LaneTasks::start(size_t lane, Nanoseconds now) {
  Running& state = running_[lane];
  const Task& begun = task(lane);
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
  std::array<size_t, kLanes> moving;
  std::array<int32_t, kLanes> links;
  size_t count = 0;
  for (size_t i = 0; i < kLanes; ++i) {
    if (running_[i].phase != Phase::Traffic) continue;
    links[count] = task(i).flow->links;
    moving[count++] = i;
  }
  if (count == 0) return;
  const int64_t alone = task(moving[0]).flow->rate;
  const int64_t* all = count == 1 ? &alone : rates.together({links.data(), count});
  for (size_t i = 0; i < count; ++i) {
    Running& state = running_[moving[i]];
    if (state.rate == all[i]) continue;
    state.remaining -= state.rate * (now - state.since);
    state.since = now;
    state.rate = all[i];
    state.due = now + (state.remaining + state.rate - 1) / state.rate;
  }
}

// From moment to moment: what ends, then what starts, then the rates.
Nanoseconds LaneTasks::run(TrafficRates& rates) {
  running_ = {};
  ended_.assign(tasks_.size(), 0);
  shared_ = false;
  Nanoseconds now = 0;
  for (size_t left = tasks_.size(); left > 0;) {
    for (size_t i = 0; i < kLanes; ++i)
      if (running_[i].phase == Phase::Idle && can_start(i)) start(i, now);
    if (shared_) share(rates, now);
    Nanoseconds next = INT64_MAX;
    for (const Running& state : running_)
      if (state.phase != Phase::Idle) next = std::min(next, state.due);
    ensure(next != INT64_MAX, "tasks of a lane wait for each other");
    now = next;
    for (size_t i = 0; i < kLanes; ++i) {
      Running& state = running_[i];
      if (state.phase == Phase::Idle || state.due != now) continue;
      if (state.phase == Phase::Latency) {
        state.phase = Phase::Traffic;
        state.remaining = task(i).flow->volume;
        state.rate = 0;
        shared_ = true;
        continue;
      }
      shared_ = shared_ || state.phase == Phase::Traffic;
      ended_[static_cast<size_t>(lanes_[i][state.next++])] = 1;
      state.phase = Phase::Idle;
      --left;
    }
  }
  return now;
}

}  // namespace windlass
