// What tasks take, in the whole nanoseconds of the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "windlass/task/task_graph.h"

namespace windlass {

using Nanoseconds = int64_t;

// What each task of a graph takes, priced once for each different work and device type.
struct TaskTimes {
  // Of tasks that do not move bytes: all of it, at least 1. Of those that do: the latency.
  std::vector<Nanoseconds> duration;
  // Bytes in the memory of the first lane's team while the task runs. Of tasks that move bytes or
  // run on a host: 0.
  std::vector<int64_t> workspace;
};

// Rounded. Throws Error{Input} if it is more than a simulation can hold.
Nanoseconds nanoseconds_of(Seconds time);
Nanoseconds latency_of(const Traffic& traffic);

// A graph of the same tasks again and again: task i of one repetition is task i + tasks of the
// next. The run ends when it has come round: at a mark, all tasks of the repetitions before have
// ended, and on every lane what runs and waits is what it was at the same mark one repetition
// earlier, with as much left to do. From there on everything would happen again, one period later.
// A task may wait for tasks of the repetition before, and then does so in all but the first one;
// beside that, repetitions are alike.
struct Repetition {
  size_t tasks = 0;
  std::span<const TaskId> marks;  // of the first repetition, ascending, all on one lane alone
};

}  // namespace windlass
