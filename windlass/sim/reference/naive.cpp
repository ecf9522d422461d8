#include "windlass/sim/reference/naive.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace windlass {
namespace {

constexpr Nanoseconds kUnknown = std::numeric_limits<Nanoseconds>::max();

// A task that has started and not ended.
struct Running {
  bool shares = false;       // moves volume over links
  Nanoseconds comes = 0;     // when its latency is over
  Nanoseconds end = 0;       // kUnknown while its traffic is yet to come
  int64_t remaining = 0;     // units of 2^-20 bytes
  int64_t rate = 0;          // units per nanosecond
  Nanoseconds reckoned = 0;  // when `remaining` was right
};

class Naive {
 public:
  Naive(const TaskGraph& graph, const TaskTimes& times, const SimOptions& options)
      : graph_(graph), times_(times), options_(options) {
    const size_t count = graph.size();
    result_.start.assign(count, -1);
    result_.end.assign(count, -1);
    lists_.resize(graph.lanes.size());
    users_.resize(graph.buffers.size());
    for (size_t i = 0; i < count; ++i) {
      for (LaneId lane : lanes_of(TaskId(i))) lists_[lane.index()].push_back(TaskId(i));
      for (BufferId buffer : buffers_of(TaskId(i))) users_[buffer.index()].push_back(TaskId(i));
    }
    next_.assign(lists_.size(), 0);
    live_.assign(graph.buffers.size(), false);
    bytes_.assign(graph.memories.size(), 0);
    for (size_t i = 0; i < graph.buffers.size(); ++i) {
      live_[i] = graph.buffers[i].at_start;
      if (live_[i]) bytes_[graph.buffers[i].memory.index()] += graph.buffers[i].bytes.value;
    }
    for (int64_t bytes : bytes_) result_.peaks.push_back({bytes, 0, {}});
  }

  SimResult run() {
    if (options_.enforce_limits) {
      for (size_t i = 0; i < bytes_.size(); ++i) {
        const int64_t excess = bytes_[i] - graph_.memories[i].limit.value;
        if (excess <= 0) continue;
        result_.status = SimStatus::OutOfMemory;
        result_.failed_memory = MemoryId(i);
        result_.missing_bytes = excess;
        return result_;
      }
    }
    start_all();
    set_rates();
    while (!running_.empty()) {
      now_ = next_moment();
      end_all();
      start_all();
      set_rates();
    }
    if (std::find(result_.end.begin(), result_.end.end(), -1) != result_.end.end()) explain();
    return result_;
  }

 private:
  std::set<LaneId> lanes_of(TaskId task) const {
    const auto lanes = graph_.lanes_of(task);
    return {lanes.begin(), lanes.end()};
  }
  std::set<BufferId> buffers_of(TaskId task) const {
    std::set<BufferId> buffers;
    for (const Use& use : graph_.uses_of(task)) buffers.insert(use.buffer);
    return buffers;
  }
  bool ended(TaskId task) const { return result_.end[task.index()] >= 0; }
  bool started(TaskId task) const { return result_.start[task.index()] >= 0; }

  TaskId next_on(LaneId lane) const {
    const auto& list = lists_[lane.index()];
    const size_t at = next_[lane.index()];
    return at < list.size() ? list[at] : TaskId();
  }

  Nanoseconds next_moment() const {
    Nanoseconds moment = kUnknown;
    for (const auto& [task, state] : running_)
      moment = std::min(moment, state.end == kUnknown ? state.comes : state.end);
    return moment;
  }

  void end_all() {
    for (auto it = running_.begin(); it != running_.end();) {
      if (it->second.end != now_) {
        ++it;
        continue;
      }
      const TaskId task = it->first;
      it = running_.erase(it);
      result_.end[task.index()] = now_;
      result_.makespan = now_;
      ++result_.ended;
      for (LaneId lane : lanes_of(task)) ++next_[lane.index()];
      release(task);
    }
  }

  void release(TaskId task) {
    for (BufferId id : buffers_of(task)) {
      const auto& users = users_[id.index()];
      const bool last = std::all_of(users.begin(), users.end(), [&](TaskId t) { return ended(t); });
      if (!last || graph_[id].at_end) continue;
      live_[id.index()] = false;
      bytes_[graph_[id].memory.index()] -= graph_[id].bytes.value;
    }
    for (const auto& [memory, bytes] : workspace_of(task)) bytes_[memory.index()] -= bytes;
  }

  std::map<MemoryId, int64_t> workspace_of(TaskId task) const {
    const int64_t bytes = times_.workspace[task.index()];
    if (bytes <= 0) return {};
    return {{graph_[graph_[graph_.lanes_of(task)[0]].team].memory, bytes}};
  }

  // Bytes that the start of the task would add to each memory.
  std::map<MemoryId, int64_t> demand(TaskId task) const {
    std::map<MemoryId, int64_t> demand = workspace_of(task);
    for (BufferId id : buffers_of(task))
      if (!live_[id.index()]) demand[graph_[id].memory] += graph_[id].bytes.value;
    return demand;
  }

  bool only_memory_missing(TaskId task) const {
    if (started(task)) return false;
    for (LaneId lane : graph_.lanes_of(task))
      if (next_on(lane) != task) return false;
    for (TaskId before : graph_.predecessors_of(task))
      if (!ended(before)) return false;
    return true;
  }

  bool fits(TaskId task) const {
    if (!options_.enforce_limits) return true;
    for (const auto& [memory, bytes] : demand(task))
      if (bytes > 0 && bytes_[memory.index()] + bytes > graph_[memory].limit.value) return false;
    return true;
  }

  std::set<TaskId> tasks_next() const {
    std::set<TaskId> tasks;
    for (size_t i = 0; i < lists_.size(); ++i)
      if (next_on(LaneId(i)).valid()) tasks.insert(next_on(LaneId(i)));
    return tasks;
  }

  void start_all() {
    for (TaskId task : tasks_next())
      if (only_memory_missing(task) && fits(task)) start(task);
  }

  void start(TaskId task) {
    result_.start[task.index()] = now_;
    for (const auto& [memory, bytes] : demand(task)) {
      int64_t& live = bytes_[memory.index()];
      live += bytes;
      MemoryPeak& peak = result_.peaks[memory.index()];
      if (live > peak.bytes) peak = {live, now_, task};
    }
    for (BufferId id : buffers_of(task)) live_[id.index()] = true;
    const Nanoseconds time = times_.duration[task.index()];
    Running state;
    state.end = now_ + std::max<Nanoseconds>(1, time);
    if (moves(graph_[task].kind)) {
      const auto price = static_cast<size_t>(graph_[task].price);
      const int64_t volume = graph_.traffics[price].volume.value;
      if (volume > 0 && !graph_.loads[price].empty()) {
        state.shares = true;
        state.comes = now_ + time;
        state.end = kUnknown;
        state.remaining = volume * (1 << 20);
      }
    }
    running_[task] = state;
  }

  const std::vector<SharedLoad>& loads_of(TaskId task) const {
    return graph_.loads[static_cast<size_t>(graph_[task].price)];
  }

  void set_rates() {
    std::vector<TaskId> unfrozen;
    for (auto& [task, state] : running_) {
      if (!state.shares || state.comes > now_) continue;
      state.remaining -= state.rate * (now_ - state.reckoned);
      state.reckoned = now_;
      unfrozen.push_back(task);
    }
    std::vector<int64_t> left;
    for (const SharedLink& link : graph_.links) {
      const double units = std::round(link.bandwidth.value * 1048576.0 / 1e9);
      left.push_back(static_cast<int64_t>(std::min(std::max(units, 1.0), std::pow(2.0, 50))));
    }
    while (!unfrozen.empty()) {
      std::vector<int64_t> weights(left.size(), 0);
      for (TaskId task : unfrozen) {
        for (const SharedLoad& load : loads_of(task))
          weights[static_cast<size_t>(load.link)] += load.weight;
      }
      size_t least = left.size();
      for (size_t i = 0; i < left.size(); ++i) {
        if (weights[i] == 0) continue;
        if (least == left.size() ||
            left[i] * 1024 / weights[i] < left[least] * 1024 / weights[least])
          least = i;
      }
      const int64_t rate = std::max<int64_t>(1, left[least] * 1024 / weights[least]);
      std::vector<TaskId> others;
      for (TaskId task : unfrozen) {
        const auto& loads = loads_of(task);
        const bool uses = std::any_of(loads.begin(), loads.end(), [&](const SharedLoad& load) {
          return static_cast<size_t>(load.link) == least;
        });
        if (!uses) {
          others.push_back(task);
          continue;
        }
        for (const SharedLoad& load : loads) {
          int64_t& rest = left[static_cast<size_t>(load.link)];
          rest = std::max<int64_t>(0, rest - rate * load.weight / 1024);
        }
        Running& state = running_[task];
        state.rate = rate;
        const int64_t whole = state.remaining / rate;
        state.end = now_ + whole + (whole * rate < state.remaining ? 1 : 0);
      }
      unfrozen = others;
    }
  }

  void explain() {
    for (size_t i = 0; i < graph_.size(); ++i) {
      const TaskId task(i);
      if (!only_memory_missing(task)) continue;
      for (const auto& [memory, bytes] : demand(task)) {
        const int64_t excess = bytes_[memory.index()] + bytes - graph_[memory].limit.value;
        if (bytes == 0 || excess <= 0) continue;
        result_.status = SimStatus::OutOfMemory;
        result_.failed_task = task;
        result_.failed_memory = memory;
        result_.missing_bytes = excess;
        return;
      }
    }
    result_.status = SimStatus::Deadlock;
    std::vector<TaskId> path;
    TaskId task(size_t{0});
    while (ended(task)) task = TaskId(task.index() + 1);
    auto again = path.end();
    while (again == path.end()) {
      path.push_back(task);
      task = blocker_of(task);
      again = std::find(path.begin(), path.end(), task);
    }
    result_.cycle.assign(again, path.end());
  }

  TaskId blocker_of(TaskId task) const {
    for (TaskId before : graph_.predecessors_of(task))
      if (!ended(before)) return before;
    for (LaneId lane : graph_.lanes_of(task))
      if (next_on(lane) != task) return next_on(lane);
    return {};
  }

  const TaskGraph& graph_;
  const TaskTimes& times_;
  const SimOptions& options_;
  SimResult result_;
  Nanoseconds now_ = 0;
  std::vector<std::vector<TaskId>> lists_;  // by lane
  std::vector<size_t> next_;                // by lane, into its list
  std::vector<std::vector<TaskId>> users_;  // by buffer
  std::vector<bool> live_;                  // by buffer
  std::vector<int64_t> bytes_;              // by memory
  std::map<TaskId, Running> running_;
};

}  // namespace

SimResult simulate_naively(const TaskGraph& graph, const TaskTimes& times,
                           const SimOptions& options) {
  return Naive(graph, times, options).run();
}

}  // namespace windlass
