// A task graph in full: what each task does, where and after whom, which buffers it uses as what,
// and how each buffer lies. Every field of the graph that says what to do is in both forms; of
// prices the sums.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// What is listed. Names of ops and tensors come from the training graph; where there is none, as in
// steps that were made of layer profiles, from the functions.
struct TaskListing {
  const TaskGraph& graph;
  const Machine& machine;
  const Graph* training = nullptr;
  std::function<std::string(TaskId)> task_name = {};
  std::function<std::string(BufferId)> buffer_name = {};
};

// A block of lines a task, a line a buffer. Ids are written t3, b7 (buffer) and g0 (group of
// devices). Example of a task:
//
// clang-format off
//   t12  backward layer0.backward, micro-batch 0, by g0 split b/2
//        on compute gpu0..gpu1, after t11; 4096 multiply-adds, 1536 bytes read, 512 written
//        input 0     reads    b9   relu0'
//        output 1    adds to  b14  layer0.weight'
// clang-format on
std::string tasks_text(const TaskListing& listing);

// The same for programs: `teams`, `memories`, `groups`, `buffers`, `tasks`. Ids are indices.
nlohmann::ordered_json tasks_json(const TaskListing& listing);

}  // namespace windlass
