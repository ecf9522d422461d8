// The simulator: a task graph in virtual time, with the live bytes of every memory.
//
// Rules, which the reference simulator (sim/reference/) states again on its own:
//  - Time is in whole nanoseconds; every task takes at least one. A step takes less than 26 days
//    (2^51 ns; with more than 4096 lanes, less in proportion): Error{Unsupported} otherwise.
//  - A lane runs its tasks in the order of their ids, one at a time. A task on several lanes holds
//    all of them.
//  - A task starts at the first moment when its predecessors have ended, it is next on each of its
//    lanes and they are idle, and the buffers it brings to life (and its workspace) fit into their
//    memories. At one moment, tasks that end release first, in the order of their ids; then tasks
//    start, in the order of their ids.
//  - A task that moves bytes first spends its latency, then its volume at a rate that changes with
//    the traffic beside it: rates are max-min fair over the shared links, by progressive filling in
//    integers. Fixed point: bytes and rates per nanosecond are in units of 2^-20 bytes.
//      capacity of a link = round(bandwidth * 2^20 / 1e9), within [1, 2^50]
//      repeat: each link with unfrozen traffic offers floor(capacity left * 1024 / sum of unfrozen
//      weights); the least offer (ties: lowest link) is the rate, at least 1, of all unfrozen
//      traffic on that link, which takes floor(rate * weight / 1024) from each of its links
//      (never below 0), and is frozen.
//    Traffic comes at the end of its latency, which may be 0: then at the start of its task. Rates
//    are set anew, for all, at each moment when traffic comes or goes (after all that happens at
//    that moment). Traffic ends at the first whole nanosecond when its volume is done. Traffic
//    without loads or without volume ends after its latency (at least 1 ns). A volume is below
//    2^42 bytes.
//  - A buffer is live from the start of the first task that uses it (or of the step) to the end of
//    the last of all tasks that use it (or of the step). One that no task uses is live all the time
//    if it is live at the start, and never otherwise.
//  - If what is live at the start exceeds a limit, nothing runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/task/task_graph.h"
#include "windlass/task/task_times.h"

namespace windlass {

// Work on a Host lane is priced on the node of the first device of the lane's team.

// Prices graph after graph, each work once. The graphs must come from one Lowering: their works and
// traffics may grow in number, but keep their meaning.
class TaskPricer {
 public:
  TaskPricer(const Machine& machine, const CostModel& cost) : machine_(machine), cost_(cost) {}

  // Valid until the next call.
  const TaskTimes& price(const TaskGraph& graph);

 private:
  struct Entry {
    Nanoseconds duration = 0;  // 0: not asked for yet
    int64_t workspace = 0;
  };
  static Entry entry_of(const Price& price);
  const Entry& on_device(const TaskGraph& graph, size_t work, size_t type);
  const Entry& on_host(const TaskGraph& graph, size_t work, NodeId node);

  const Machine& machine_;
  const CostModel& cost_;
  std::vector<Entry> on_devices_;  // by work and device type
  std::map<std::pair<size_t, NodeId>, Entry> on_hosts_;
  std::vector<Nanoseconds> latencies_;  // by traffic
  TaskTimes times_;
};

TaskTimes price_tasks(const TaskGraph& graph, const Machine& machine, const CostModel& cost);

enum class SimStatus : uint8_t { Done, OutOfMemory, Deadlock };

// What was alive in one memory at its highest moment.
struct MemoryPeak {
  int64_t bytes = 0;
  Nanoseconds time = 0;  // the first moment it was reached
  TaskId task;           // that started then; none if it is the state at the start
};

struct SimResult {
  SimStatus status = SimStatus::Done;
  Nanoseconds makespan = 0;             // when the last task ended of those that ran
  size_t ended = 0;                     // tasks
  std::vector<Nanoseconds> start, end;  // by task; -1 for tasks that never ran
  std::vector<MemoryPeak> peaks;        // by memory
  // Of a graph that repeats: whether it came round; tasks that had not ended by then count as not
  // run. And the time from the mark before that to the one where the run ended; if it did not come
  // round, the last mark of all. 0 if no mark ended twice.
  bool came_round = false;
  Nanoseconds period = 0;

  // OutOfMemory, when nothing runs any more: the first task, by id, that nothing but memory keeps
  // from starting, and the first memory that is too small for it. No task if the state at the start
  // is too large.
  TaskId failed_task;
  MemoryId failed_memory;
  int64_t missing_bytes = 0;  // beyond the limit
  // Deadlock: tasks each of which waits for the next, the last for the first. A task waits for the
  // first of its predecessors that has not ended; if all have, for the task that is next on the
  // first of its lanes where it is not next itself. The cycle is the one that the first task that
  // never ran leads to, from where it is entered.
  std::vector<TaskId> cycle;
};

struct SimOptions {
  bool enforce_limits = true;  // false: peaks are found however high
  const Repetition* repetition = nullptr;
};

// Keeps its arrays from one run to the next; not shared between threads.
class Simulator {
 public:
  Simulator();
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;

  // The result is valid until the next run.
  const SimResult& run(const TaskGraph& graph, const TaskTimes& times,
                       const SimOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

SimResult simulate(const TaskGraph& graph, const Machine& machine, const CostModel& cost,
                   const SimOptions& options = {});

// Buffers alive in a memory at a moment, after the tasks that start then have started; by size, the
// largest first, ties by id.
std::vector<BufferId> alive_at(const TaskGraph& graph, const SimResult& result, MemoryId memory,
                               Nanoseconds time);

}  // namespace windlass
