// A program: the tasks of a graph with the buffers that they use listed by operand, so that running
// a step is looking things up.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// An operand of a task. Absent ones have no buffer.
struct Operand {
  BufferId buffer = {};
  TensorId tensor = {};  // gives its type
  bool adds = false;     // a result that is added to what the buffer holds
};

// A weight and what is updated with it.
struct WeightUpdate {
  int32_t update = 0;                    // which update op of the training graph
  std::vector<BufferId> gradients = {};  // to be added up; at least one
  BufferId weight = {};                  // none: the host has only the master copy
  BufferId state = {};                   // master copy, then the optimizer's tensors; none for SGD
};

struct ProgramTask {
  TaskKind kind = TaskKind::Forward;
  OpId op = {};
  int32_t micro_batch = -1;
  // Forward, Recompute: parallel to the op's inputs; outputs, then auxiliaries.
  // Backward: parallel to the op's inputs and outputs. Sums: terms and the sum.
  // Copies and compression: read i is copied to write i.
  std::vector<Operand> reads = {}, writes = {};
  std::vector<WeightUpdate> updates = {};  // Update, HostUpdate; of a Norm: gradients alone
  // Norm: the sum that squares are added to. Updates: what they are clipped by, to be added up.
  std::vector<Operand> squares = {};
  int bits = 0;  // Compress, Decompress: of an element
};

struct Program {
  std::vector<ProgramTask> tasks;  // by task id
};

// Throws Error{Unsupported} for what the runtime does not carry out: tasks between devices, demand
// paging.
Program make_program(const TrainingGraph& training, const TaskGraph& tasks);

}  // namespace windlass
