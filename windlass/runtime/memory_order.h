// The order in which a run takes and gives back memory: that of the simulation, event by event.
//
// Real tasks take a little more or less time than predicted. If each took memory when it happened
// to start, the peak would be a matter of luck. So in each memory, tasks that take something are
// granted it in the order of their simulated starts, and what a task leaves is given back only when
// all that started earlier in the simulation have been granted theirs. Then what is live at any
// moment was live at some moment of the simulation: the measured peak is the predicted one. (A
// kernel allocates while it runs. So that the highest moment is really reached, what is released in
// the simulation after the task of the peak has started is held until that task has ended.)
//
// It never blocks for good: when a task is next to be granted, all tasks that had ended before it
// started in the simulation have been granted, and none of them waits for it; once they have
// ended, what is live is what was live there in the simulation.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

// What a task takes from one memory when it starts.
struct MemoryGrant {
  MemoryId memory;
  int32_t rank = 0;   // among the grants of that memory
  int64_t bytes = 0;  // buffers that come to life
  int64_t workspace = 0;
};

struct MemoryOrder {
  std::vector<std::vector<MemoryGrant>> grants;  // by task
  // By task: the buffers that die with it if it is the last of their users to end.
  std::vector<std::vector<BufferId>> releases;
  std::vector<int32_t> uses;           // by buffer: tasks that use it
  std::vector<int32_t> release_rank;   // by buffer: grants of its memory that come first
  std::vector<TaskId> held_by;         // by buffer: a task that must have ended, or none
  std::vector<TaskId> peak_task;       // by memory: that started at the peak, or none
  std::vector<int64_t> at_start, cap;  // by memory: bytes live when a step begins; the peak
};

// `result` must be that of a step that ended.
MemoryOrder memory_order(const TaskGraph& tasks, const TaskTimes& times, const SimResult& result);

}  // namespace windlass
