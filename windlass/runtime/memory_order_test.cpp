// Whatever the tasks of a run take, memory follows the simulation: no run gets stuck, and none has
// more alive than was predicted.

#include "windlass/runtime/memory_order.h"

#include <algorithm>
#include <queue>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/sim/reference/random_tasks.h"

namespace windlass {
namespace {

// The executor's rules on a clock of its own, with durations of its own.
class Rehearsal {
 public:
  Rehearsal(const TaskGraph& tasks, const MemoryOrder& order, Rng& rng)
      : tasks_(tasks),
        order_(order),
        rng_(rng),
        done_(tasks.size()),
        uses_(order.uses),
        granted_(tasks.memories.size(), 0),
        live_(order.at_start),
        most_(order.at_start),
        at_peak_(order.at_start),
        deferred_(tasks.memories.size()),
        next_(tasks.lanes.size(), 0),
        lanes_(tasks.lanes.size()) {
    for (size_t i = 0; i < tasks.size(); ++i)
      for (LaneId lane : tasks.lanes_of(TaskId(i))) lanes_[lane.index()].push_back(TaskId(i));
  }

  // False if nothing can go on before all is done.
  bool run() {
    size_t left = tasks_.size();
    while (left > 0) {
      for (bool started = true; started;) {
        started = false;
        for (size_t i = 0; i < tasks_.size(); ++i)
          if (!begun_.contains(i) && ready(TaskId(i))) {
            start(TaskId(i));
            started = true;
          }
      }
      if (ends_.empty()) return false;
      const auto [time, task] = ends_.top();
      ends_.pop();
      now_ = time;
      finish(TaskId(task));
      --left;
    }
    return true;
  }

  const std::vector<int64_t>& most() const { return most_; }
  // Live when the task of the peak ended.
  const std::vector<int64_t>& at_peak() const { return at_peak_; }

 private:
  bool ready(TaskId task) const {
    for (LaneId lane : tasks_.lanes_of(task)) {
      const size_t at = next_[lane.index()];
      if (at >= lanes_[lane.index()].size() || lanes_[lane.index()][at] != task) return false;
      if (busy_.contains(lane.index())) return false;
    }
    for (TaskId before : tasks_.predecessors_of(task))
      if (!done_[before.index()]) return false;
    for (const MemoryGrant& grant : order_.grants[task.index()]) {
      const size_t m = grant.memory.index();
      if (granted_[m] != grant.rank) return false;
      if (live_[m] + grant.bytes + grant.workspace > order_.cap[m]) return false;
    }
    return true;
  }

  void start(TaskId task) {
    begun_.insert(task.index());
    for (LaneId lane : tasks_.lanes_of(task)) busy_.insert(lane.index());
    for (const MemoryGrant& grant : order_.grants[task.index()]) {
      const size_t m = grant.memory.index();
      ++granted_[m];
      live_[m] += grant.bytes + grant.workspace;
      most_[m] = std::max(most_[m], live_[m]);
      release_deferred(m);
    }
    ends_.emplace(now_ + rng_.integer(1, 1000), task.index());
  }

  void finish(TaskId task) {
    done_[task.index()] = true;
    for (size_t m = 0; m < order_.peak_task.size(); ++m)
      if (order_.peak_task[m] == task) at_peak_[m] = live_[m];
    for (LaneId lane : tasks_.lanes_of(task)) {
      busy_.erase(lane.index());
      ++next_[lane.index()];
    }
    for (const MemoryGrant& grant : order_.grants[task.index()])
      live_[grant.memory.index()] -= grant.workspace;
    for (BufferId buffer : order_.releases[task.index()]) {
      if (--uses_[buffer.index()] > 0) continue;
      const size_t m = tasks_[buffer].memory.index();
      if (releasable(buffer))
        live_[m] -= tasks_[buffer].bytes.value;
      else
        deferred_[m].push_back(buffer);
    }
    for (size_t m = 0; m < order_.peak_task.size(); ++m)
      if (order_.peak_task[m] == task) release_deferred(m);
  }

  bool releasable(BufferId buffer) const {
    const TaskId holder = order_.held_by[buffer.index()];
    return order_.release_rank[buffer.index()] <= granted_[tasks_[buffer].memory.index()] &&
           (!holder.valid() || done_[holder.index()]);
  }
  void release_deferred(size_t m) {
    std::erase_if(deferred_[m], [&](BufferId buffer) {
      if (!releasable(buffer)) return false;
      live_[m] -= tasks_[buffer].bytes.value;
      return true;
    });
  }

  const TaskGraph& tasks_;
  const MemoryOrder& order_;
  Rng& rng_;
  std::vector<bool> done_;
  std::vector<int32_t> uses_, granted_;
  std::vector<int64_t> live_, most_, at_peak_;
  std::vector<std::vector<BufferId>> deferred_;
  std::vector<size_t> next_;
  std::vector<std::vector<TaskId>> lanes_;
  std::set<size_t> begun_, busy_;
  using End = std::pair<int64_t, size_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  int64_t now_ = 0;
};

TEST(MemoryOrder, NeverBlocksAndEndsAtThePredictedPeak) {
  Rng rng(7);
  size_t ended = 0;
  for (int problem = 0; problem < 600; ++problem) {
    Rng source(11, static_cast<uint64_t>(problem));
    RandomTasks tasks = random_tasks(source, 5 + static_cast<size_t>(problem) % 60);
    // Workspace goes when its task ends, which may be early; buffers go in order.
    const bool buffers_only = problem % 2 == 0;
    if (buffers_only) std::ranges::fill(tasks.times.workspace, 0);
    Simulator simulator;
    const SimResult result = simulator.run(tasks.graph, tasks.times);
    if (result.status != SimStatus::Done) continue;
    ++ended;
    const MemoryOrder order = memory_order(tasks.graph, tasks.times, result);
    for (int trial = 0; trial < 5; ++trial) {
      Rehearsal run(tasks.graph, order, rng);
      ASSERT_TRUE(run.run()) << "problem " << problem;
      for (size_t m = 0; m < order.cap.size(); ++m) {
        EXPECT_LE(run.most()[m], result.peaks[m].bytes) << "problem " << problem;
        if (buffers_only) {
          EXPECT_EQ(run.most()[m], result.peaks[m].bytes) << "problem " << problem;
          // Kernels allocate while they run: to the end of the highest task nothing may go.
          if (order.peak_task[m].valid()) {
            EXPECT_EQ(run.at_peak()[m], result.peaks[m].bytes) << "problem " << problem;
          }
        }
      }
    }
  }
  EXPECT_GT(ended, 200u);
}

}  // namespace
}  // namespace windlass
