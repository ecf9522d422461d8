// Kernels as they are priced: a piece of an op of a training graph, on operands of its own sizes.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "windlass/graph/coupled.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"
#include "windlass/graph/samples.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// A kernel that a task runs. The graph and the op must outlive it.
struct KernelRun {
  const Graph* graph = nullptr;
  const Op* op = nullptr;
  OpPiece piece = {};   // of the op's forward signature
  bool whole = true;    // the piece is the whole op
  bool begins = false;  // makes the statistics of a coupled piece, instead of its results
  uint64_t adds = 0;    // bit i: result i is added to a sum

  // What the piece exchanges in the op's pass.
  Exchange exchange() const;
};

// Operands of a kernel as they are here: parallel to the op's inputs, and its outputs followed by
// its auxiliaries. Absent ones have DType::None.
struct KernelOperands {
  std::vector<TensorType> inputs, results;
  std::vector<const Region*> input_regions;  // in the whole operand; of the run's piece
};
KernelOperands operands_of(const KernelRun& run);

// Names all that the price of a kernel depends on: kind, pass, attributes and types, and of a piece
// also its step and those facts that change what is computed. That of a whole op is the same
// whether it is one of several devices' or not.
std::string key_of(const KernelRun& run);
// Of a whole op.
std::string key_of(const Graph& graph, const Op& op, uint64_t adds);

// The kernel of a whole op, by itself.
KernelRun whole_run(const Graph& graph, const Op& op, uint64_t adds);

// Of each task of a graph that runs a kernel of an op: the piece that the first member of its team
// has, all of which have pieces of the same size; of attention that hides keys, the piece that sees
// most of them.
class TaskKernels {
 public:
  TaskKernels(const TrainingGraph& training, const TaskGraph& tasks);

  // Whether the task runs the kernel of an op.
  bool has(TaskId id) const;
  uint64_t adds(TaskId id) const;
  // Whether it is a whole op; cheaper than `run`, but for pieces that happen to be whole.
  bool whole(TaskId id) const;
  KernelRun run(TaskId id) const;
  // All that `run` follows from: tasks with the same origin run the same kernel, in other graphs
  // too. Made faster than the piece.
  struct Origin {
    std::string text;  // the op, its step, members and samples
    Sharding sharding;
    auto operator<=>(const Origin&) const = default;
  };
  Origin origin(TaskId id) const;
  // Tasks with the same number run the same kernel.
  using Number = std::tuple<uint32_t, int32_t, int64_t, int32_t, bool, uint64_t>;
  Number number(TaskId id) const;

  // Bytes of operands that a device must make dense first: parts of what it has.
  int64_t copied_bytes(TaskId id) const;

  // Elements of a weight that a task updates at once: the share of a member, or what one host has
  // of all its members. `weight` is a use of the task, `update` the op.
  int64_t updated_elements(TaskId id, const Use& weight, const Op& update) const;

 private:
  std::vector<int64_t> members(TaskId id) const;  // of the task's team, ascending
  OpPiece piece(TaskId id, const Signature& signature, const LoopNest& nest, int64_t member,
                bool& whole) const;
  Range samples(TaskId id) const;  // of the task's micro-batch
  OpPiece sum_piece(TaskId id, int64_t member) const;
  // The ops in the sizes that they have in a micro-batch, and a number of these sizes.
  const Graph& graph(int32_t micro_batch) const { return training_.of(micro_batch).graph; }
  int32_t size_of(const Task& task) const {
    return &graph(task.micro_batch) == &training_.graph ? -1 : 0;
  }
  Region region(int32_t layout, TensorId tensor, int32_t micro_batch, int64_t member) const;

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  SampleAxes samples_;      // if the training graph is of all micro-batches
  std::vector<bool> cuts_;  // by view: it, or one that it is a view of, is a part of something
};

}  // namespace windlass
