#include "windlass/plan/step.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/lower.h"

namespace windlass {

std::optional<Bytes> find_least_limit(const TaskGraph& graph, const TaskTimes& times,
                                      const SimResult& unlimited) {
  TaskGraph copy = graph;
  Simulator simulator;
  const auto runs = [&](int64_t limit) {
    for (Memory& memory : copy.memories)
      if (memory.team.valid()) memory.limit = Bytes(limit);
    return simulator.run(copy, times).status == SimStatus::Done;
  };
  int64_t enough = 0, at_start = 0;
  std::vector<int64_t> standing(graph.memories.size(), 0);
  for (const Buffer& buffer : graph.buffers)
    if (buffer.at_start) standing[buffer.memory.index()] += buffer.bytes.value;
  for (size_t m = 0; m < graph.memories.size(); ++m) {
    if (!graph.memories[m].team.valid()) continue;
    enough = std::max(enough, unlimited.peaks[m].bytes);
    at_start = std::max(at_start, standing[m]);
  }
  if (!runs(enough)) return std::nullopt;
  const int64_t resolution = std::max<int64_t>(kMiB.value, enough >> 20);
  int64_t too_little = std::max<int64_t>(0, at_start - 1);
  while (enough - too_little > resolution) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    (runs(middle) ? enough : too_little) = middle;
  }
  return Bytes(enough);
}

SimulatedStep simulate_step(const TrainingGraph& training, const Strategy& strategy,
                            const Machine& machine, const CostModel& cost,
                            const SimOptions& options, const Reprice& reprice) {
  SimulatedStep step;
  step.tasks = lower(training, strategy, machine);
  step.times = price_tasks(step.tasks, machine, cost);
  if (reprice) reprice(training, step.tasks, step.times);
  for (const Team& team : step.tasks.teams)
    step.overhead = std::max(step.overhead, cost.step_overhead(machine.device_types[team.type]));
  Simulator simulator;
  step.result = simulator.run(step.tasks, step.times, options);
  ensure(step.result.status != SimStatus::Deadlock, "tasks of the step wait for each other");
  if (step.result.status == SimStatus::OutOfMemory) {
    step.unlimited = simulator.run(step.tasks, step.times, {.enforce_limits = false});
    step.least_limit = find_least_limit(step.tasks, step.times, *step.unlimited);
  }
  return step;
}

}  // namespace windlass
