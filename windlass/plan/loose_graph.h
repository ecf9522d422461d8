// Task graphs that are easy to change, for tests.
#pragma once

#include <vector>

#include "windlass/task/task_graph.h"

namespace windlass::cases {

// A task with its lists.
struct LooseTask {
  Task task;
  std::vector<LaneId> lanes;
  std::vector<TaskId> after;
  std::vector<Use> uses;
  TaskId id;  // what others know it by
};

struct LooseGraph {
  TaskGraph rest;
  std::vector<LooseTask> tasks;

  explicit LooseGraph(const TaskGraph& graph) : rest(graph) {
    for (size_t i = 0; i < graph.size(); ++i) {
      const TaskId id(i);
      const auto lanes = graph.lanes_of(id);
      const auto after = graph.predecessors_of(id);
      const auto uses = graph.uses_of(id);
      tasks.push_back({graph[id],
                       {lanes.begin(), lanes.end()},
                       {after.begin(), after.end()},
                       {uses.begin(), uses.end()},
                       id});
    }
  }

  TaskGraph build() const {
    TaskGraph graph = rest;
    const std::vector<Buffer> buffers = rest.buffers;
    const std::vector<View> views = rest.views;
    graph.clear_tasks();
    for (const Buffer& buffer : buffers) graph.add(buffer);
    graph.views = views;
    std::vector<TaskId> renamed(rest.size());
    for (const LooseTask& task : tasks) {
      std::vector<TaskId> after;
      for (TaskId before : task.after)
        if (renamed[before.index()].valid()) after.push_back(renamed[before.index()]);
      const TaskId id = graph.add(task.task, task.lanes, after, task.uses);
      if (task.id.valid()) renamed[task.id.index()] = id;
    }
    return graph;
  }
};

}  // namespace windlass::cases
