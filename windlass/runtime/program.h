// A program: the tasks of a graph spelled out for each device that has a part in them. Which memory
// an operand lies in, which part of a tensor it is, which piece of an op is run, what goes from
// where to where in a move: all of it is looked up once, so that running a step is carrying it out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/graph/coupled.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/plan/step_row.h"
#include "windlass/runtime/regions.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// A memory as it is: that of one device, or of one host.
struct RealMemory {
  MemoryId memory;  // of the graph: that of a team, or of hosts, whose memories are alike
  DeviceId device;  // none: a host's
  NodeId node;      // the host, or that of the device
  std::string name;
  Bytes limit;
};

// Bytes of a buffer in one memory: those of one member, or of members for which one copy on the
// host serves.
struct Slot {
  BufferId buffer;
  int32_t memory = -1;  // of Program::memories
  int64_t bytes = 0;
};

// What lies in a slot from the start of a step: elements `mine` of a part of a tensor. Of optimizer
// state, of each tensor one behind the other.
struct Placed {
  int32_t slot = -1;
  Region region;
  Range mine;
};

// A part of a dense array, copied to be dense itself.
struct OperandCut {
  Overlap overlap;
  TensorType type;
};

// What a task reads or writes on one device. Absent ones have no slot.
struct Operand {
  int32_t slot = -1;
  TensorType type = {};               // as it lies here
  int64_t offset = 0;                 // in bytes
  std::vector<OperandCut> cuts = {};  // to be made of it first, one of the other
  bool adds = false;                  // a result that is added to what is there

  bool present() const { return slot >= 0; }
};

// A weight and what is updated with it: flat parts of the same length; of a gradient that is cut
// out first, all of the region.
struct WeightUpdate {
  int32_t update = 0;                   // which update op of the training graph
  std::vector<Operand> gradients = {};  // to be added up
  Operand weight = {};
  Operand master = {};
  std::vector<Operand> states = {};
  Region region = {};  // of the weight, that the device has
  Range mine = {};     // of its elements, those that are updated here
};

// Bytes from one slot to another.
struct FlatCopy {
  int32_t from = -1, to = -1;
  int64_t from_at = 0, to_at = 0, bytes = 0;
};

// Elements that two parts of a tensor have in common, from one slot to another.
struct PartCopy {
  Operand from;
  int32_t to = -1;
  DType dtype = DType::F32;
  Overlap overlap;
};

// What one device does of a task.
struct Part {
  int64_t member = 0;   // in the task's group
  int32_t memory = -1;  // of Program::memories: where it computes
  int32_t piece = -1;   // of Program::pieces
  // Forward, Recompute: parallel to the op's inputs; outputs, then auxiliaries.
  // Backward: parallel to the op's inputs and outputs. Sums: terms and the sum.
  // Compression: from and to.
  std::vector<Operand> reads = {}, writes = {};
  Operand statistics = {};  // of a coupled op
  std::vector<WeightUpdate> updates = {};
  // Norm: what squares are added to, and of which they are. Updates: what they are clipped by.
  std::vector<Operand> squares = {}, squared = {};
  // Swaps and joins.
  std::vector<FlatCopy> flat_copies = {};
  std::vector<PartCopy> part_copies = {};
  // The loss, if it is made here, is counted; of several that hold the same the first counts.
  bool counts_loss = false;
  std::vector<int32_t> allocates = {};  // slots that must be there before it runs
};

// What one member receives in a redistribution: for each place among partial results, parts that
// are put beside each other; places are combined in ascending order.
struct Receive {
  int32_t to = -1;
  TensorType type;
  CombineFn combine = CombineFn::Sum;
  bool sums = false;  // parts that overlap are added up, and what nobody has is zero
  struct Source {
    Operand from;
    Overlap overlap;
    int64_t place = 0;
  };
  std::vector<Source> sources;  // ascending by place
};

// Elements of several slots, combined in the order of the members.
struct TermSum {
  struct Where {
    int32_t slot = -1;
    int64_t at = 0;  // byte
    bool adds = false;
  };
  std::vector<Where> terms = {}, results = {};
  int64_t count = 0;
  DType dtype = DType::F32;
  CombineFn combine = CombineFn::Sum;
};

// Statistics that pieces of a coupled op exchange: all end with the same.
struct StatisticsMerge {
  std::vector<int32_t> slots;
  Exchange exchange;
};

struct ProgramTask {
  TaskKind kind = TaskKind::Forward;
  OpId op = {};
  int32_t micro_batch = -1;
  bool begins = false;
  int bits = 0;  // Compress, Decompress: of an element
  std::vector<Part> parts = {};

  // Moves between devices.
  std::vector<Receive> receives = {};
  std::vector<TermSum> sums = {};
  std::vector<FlatCopy> copies = {};
  std::vector<StatisticsMerge> merges = {};
  std::vector<int32_t> allocates = {};

  // Whether every device does its part by itself, when it is ready; otherwise all of it is one.
  bool apart = true;
  std::vector<BufferId> brings = {};  // data of a later step of a row, before anything else
};

// A piece of an op, as a device runs it.
struct ProgramPiece {
  OpPiece piece;
  OpId forward;  // the forward op
  // Of a result that is known beforehand this device has all, or nothing: it is a partial sum.
  double count = 1;
  double result = -1;  // what is known, in the step at hand; negative: nothing
  int32_t step = 0;    // of a row
};

struct Program {
  std::vector<RealMemory> memories;
  std::vector<int32_t> first_memory;  // by memory of the graph; the team's members, or the other
                                      // hosts, follow
  std::vector<Slot> slots;
  std::vector<std::vector<int32_t>> slots_of;  // by buffer: by member of its team; on a host, by
                                               // member of its team too, several may be the same
  std::vector<std::vector<Placed>> placed;     // by buffer: of those that are there at the start,
                                               // or brought as data, each slot once
  std::vector<ProgramPiece> pieces;
  std::vector<ProgramTask> tasks;  // by task id
  std::vector<bool> rests;         // by buffer: there between steps, as it is when a step begins
  // Slots that have the bytes of others when the next step begins.
  struct Carry {
    int32_t from = -1, to = -1;
  };
  std::vector<Carry> carries;
  int64_t devices = 0;

  // One device with all samples counts labels by itself.
  bool needs_counts() const { return devices > 1 || micro_batches > 1 || in_parts; }
  bool in_parts = false;  // micro-batches are parts of the batch that the training graph is of
  int32_t micro_batches = 1;

  int32_t steps = 1;               // in a row
  std::vector<TaskId> order = {};  // as of RowShape
  // A task's step, and which task of the step itself it is.
  size_t step_of(TaskId task) const { return task.index() / tasks_each(); }
  TaskId in_step(TaskId task) const {
    const size_t place = task.index() % tasks_each();
    return order.empty() ? TaskId(place) : order[place];
  }
  size_t tasks_each() const { return tasks.size() / static_cast<size_t>(steps); }
};

// `sample_axes` as in ExecutorOptions.
Program make_program(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
                     const std::vector<int32_t>& sample_axes, const RowShape& row = {});

// Each device swaps what is its own by itself, on a thread of its own. For programs that one
// process has alone: several tell each other what they swap as a whole.
void let_swaps_go_apart(Program& program);

}  // namespace windlass
