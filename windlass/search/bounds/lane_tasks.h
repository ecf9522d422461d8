// The tasks of one team in short: which lane, how long, after which others. Each task's earliest
// end is known as soon as it is added, as if nobody else used its links; run() then finds the end
// of all with shared links, as the simulator does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "windlass/search/bounds/pile.h"
#include "windlass/search/bounds/traffic_rates.h"

namespace windlass {

class LaneTasks {
 public:
  using Flow = TrafficRates::Flow;
  enum Lane : uint8_t { kCompute, kCommunicate, kReduce, kSwapOut, kSwapIn, kHost };
  static constexpr size_t kLanes = 6;

  void clear();

  // Before add(): what the task waits for; nothing if -1. Earlier tasks of its lane need no word.
  void after(Lane own, int32_t task) {
    if (!waits(own, task)) return;
    ready_ = std::max(ready_, tasks_[static_cast<size_t>(task)].end);
    before_.add() = task;
  }
  bool waits(Lane own, int32_t task) const {
    return task >= 0 && tasks_[static_cast<size_t>(task)].lane != own;
  }
  // Tasks of a lane run in the order in which they are added. Returns its number.
  int32_t add(Lane lane, Nanoseconds duration) { return add(lane, duration, nullptr); }
  int32_t add(Lane lane, const Flow& flow) { return add(lane, flow.alone, &flow); }

  // At the earliest: of a task, of all tasks of a lane, of everything.
  Nanoseconds end(int32_t task) const { return tasks_[static_cast<size_t>(task)].end; }
  Nanoseconds end(Lane lane) const { return ends_[lane]; }
  Nanoseconds end() const { return *std::max_element(ends_.begin(), ends_.end()); }
  int32_t last(Lane lane) const { return last_[lane]; }

  // When everything has ended.
  Nanoseconds run(TrafficRates& rates);

 private:
  struct Task {
    Lane lane = kCompute;
    const Flow* flow = nullptr;
    Nanoseconds duration = 0;
    Nanoseconds end = 0;      // at the earliest
    uint32_t before_end = 0;  // in before_
  };
  enum class Phase : uint8_t { Idle, Fixed, Latency, Traffic };
  // A lane that has tasks left.
  struct Running {
    Lane lane = kCompute;
    Phase phase = Phase::Idle;
    int32_t task = -1;    // that is next, or under way
    uint32_t waited = 0;  // in before_: what the task waits for has ended up to here
    Lane blocker_lane = kCompute;
    int32_t blocker = -1;  // on that lane, has to end first
    Nanoseconds due = INT64_MAX;
    int64_t remaining = 0, rate = 0;  // of the volume, at `since`
    Nanoseconds since = 0;
  };

  int32_t add(Lane lane, Nanoseconds alone, const Flow* flow) {
    const auto id = static_cast<int32_t>(tasks_.size());
    const Nanoseconds end = std::max(ends_[lane], ready_) + alone;
    tasks_.add() = {lane, flow, alone, end, static_cast<uint32_t>(before_.size())};
    ends_[lane] = end;
    last_[lane] = id;
    ready_ = 0;
    return id;
  }
  const Task& task(const Running& state) const { return tasks_[static_cast<size_t>(state.task)]; }
  bool can_start(Running& state) const;
  void start(Running& state, Nanoseconds now);
  void turn_to(Running& state, int32_t task) const;
  void share(TrafficRates& rates, Nanoseconds now);

  Pile<Task> tasks_;
  Pile<int32_t> before_;
  std::array<int32_t, kLanes> last_ = {-1, -1, -1, -1, -1, -1};  // task
  std::array<Nanoseconds, kLanes> ends_ = {};
  Nanoseconds ready_ = 0;                // of the task that is added next
  std::array<Running, kLanes> running_;  // the first running_count_
  size_t running_count_ = 0;
  std::array<int32_t, kLanes> reached_ = {};  // by lane: the first task that has not ended
  std::vector<int32_t> following_;            // by task: of its lane, -1: none
  bool shared_ = false;                       // traffic came or went
};

}  // namespace windlass
