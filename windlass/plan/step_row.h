// A row of steps: one task graph of several steps one behind the other, in which the next step
// begins before the last updates of the one before are done.
//
// Lanes go on from step to step in their order. A task waits for those of the step before that
// write what it uses, or use what it writes, of what rests between steps: a weight's first use
// waits for its update, and nothing else does. All other buffers are each step's own. Data of the
// first step is there from the start; that of a later one is brought by the first task that uses
// it. Updates on the host that are left when the last gradient has been computed may be done in the
// order in which the next step needs them: else what is needed first is updated last.
//
// So the simulator says what a row takes and which peaks it has, inside the same limits, and
// the runtime runs it as it runs a step. Between rows there is a barrier: everything has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/plan/step.h"

namespace windlass {

// When a step of a row may begin.
enum class RowStart : uint8_t {
  Free,           // as its first tasks can
  AfterBackward,  // when the step before has computed its gradients: it needs less memory
};

// What those must know of a row who carry it out. A step by itself is a row of one.
struct RowShape {
  int32_t steps = 1;
  // By buffer, if there are several steps: whether the first task, by id, that uses it brings it.
  std::vector<bool> brought = {};
  // By place in a step of the row: the task of the step itself; empty: they are in its order.
  std::vector<TaskId> order = {};

  TaskId original(size_t place) const { return order.empty() ? TaskId(place) : order[place]; }
};

struct StepRow {
  RowShape shape;
  RowStart start = RowStart::Free;
  // Task original(i) of step k is i + k * tasks of a step; buffers of the first step are those of
  // the step itself.
  TaskGraph tasks;
  TaskTimes times;
  SimResult result;

  size_t tasks_each() const { return tasks.size() / static_cast<size_t>(shape.steps); }
  // Of all steps; at each moment the last task of a step ended.
  std::vector<Nanoseconds> ends() const;
  Seconds mean_time(Seconds overhead) const {
    return Seconds(static_cast<double>(result.makespan) * 1e-9 / shape.steps) + overhead;
  }
};

// Updates on lanes of the host that begin when all gradients have been computed, and that nothing
// in the step waits for, in the order in which the next step first uses what they write.
std::vector<TaskId> late_updates(const SimulatedStep& step);

// Not simulated yet. The step must hand nothing on but what rests (see cannot_row()). `late`: done
// last in each step, in this order; of late_updates(), or empty.
StepRow chain_steps(const TaskGraph& step, const TaskTimes& times, int32_t steps, RowStart start,
                    const std::vector<TaskId>& late = {});

// Why steps of this kind cannot be in a row; empty if they can.
std::string cannot_row(const TaskGraph& step);

// The fastest way to start steps and to order updates among those that fit; its result is not Done
// if none does.
StepRow make_row(const SimulatedStep& step, int32_t steps);

// What is predicted of a step in a row: peaks are those of the row, the time is the median time
// from the end of a step to the end of the next, but for the first one, and tasks are those of a
// step in the middle, from its first task on.
SimulatedStep step_of_row(const SimulatedStep& step, const StepRow& row);

}  // namespace windlass
