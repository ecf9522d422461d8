// The task graph: which piece of which op runs where, which bytes move over which link, which
// buffer lives from when to when. Plain arrays; the simulator runs it in virtual time, the runtime
// with real kernels and real copies.
//
// Devices that do the same on pieces of the same size form a team and share their tasks: a task of
// a team is run by every member on its own piece, and stands in the graph once. So a graph grows
// with the number of different programs, not with the number of devices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/id.h"
#include "windlass/base/units.h"
#include "windlass/cost/traffic.h"
#include "windlass/cost/work.h"
#include "windlass/graph/graph.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/redistribute.h"

namespace windlass {

using TaskId = Id<struct TaskTag>;
using BufferId = Id<struct BufferTag>;
using TeamId = Id<struct TeamTag>;
using LaneId = Id<struct LaneTag>;
using MemoryId = Id<struct MemoryTag>;

enum class TaskKind : uint8_t {
  Forward,     // an op of the forward pass
  Recompute,   // the same again, for the backward pass
  Backward,    // an op of the backward pass
  Update,      // optimizer, on a device
  HostUpdate,  // optimizer, on the host
  Compress,    // a saved tensor to fewer bits
  Decompress,
  Join,        // samples of micro-batches to the micro-batch that has them too, on a device
  Norm,        // squares of gradients are added up: of members that hold the same the first counts
  Collective,  // among the members of teams: redistribution of activations and their gradients
  Reduce,      // gradients over replicas
  Gather,      // weights over replicas
  Send,        // from one team to another
  SwapOut,     // device to host
  SwapIn,      // host to device
};
std::string_view task_kind_name(TaskKind kind);
// Moves bytes over links, priced by Traffic; the others are priced by Work.
constexpr bool moves(TaskKind kind) { return kind >= TaskKind::Collective; }
// Between devices.
constexpr bool exchanges(TaskKind kind) {
  return kind >= TaskKind::Collective && kind <= TaskKind::Send;
}

// A queue of tasks that run one at a time, in the order of their ids.
enum class LaneKind : uint8_t { Compute, Communicate, Reduce, Send, SwapOut, SwapIn, Host };
std::string_view lane_kind_name(LaneKind kind);

struct Lane {
  LaneKind kind = LaneKind::Compute;
  TeamId team;      // whose; of a Host lane: whose weights it updates
  TeamId receiver;  // of a Send lane
};

struct Team {
  std::vector<DeviceId> devices;  // in the order of the group they were made from
  size_t type = 0;                // index into Machine::device_types; all members are of it
  MemoryId memory;
};

// The memory of one member of a team (all members hold the same), or of one host of several that
// hold the same.
struct Memory {
  std::string name;           // "gpu0-7", "host0"
  TeamId team;                // none for a host
  std::vector<NodeId> hosts;  // hosts only
  Bytes limit;                // of the least member
};

enum class BufferKind : uint8_t {
  Weight,
  WeightGradient,
  OptimizerState,  // master copies included
  Activation,      // kept for or read by the backward pass too
  Transient,       // of one pass only: activations that nobody saves, gradients of activations
  Communication,   // the result of a redistribution; statistics that pieces of an op exchange
  Stash,           // a saved tensor on the host, or compressed
  Input,           // data of the step
};
std::string_view buffer_kind_name(BufferKind kind);

// Bytes of its own in a memory, on each member of a team or on their host. What they hold: a piece
// of a tensor, as it lies over a group of devices; that of a member, or its share of it. Of saved
// tensors a host holds the pieces of all members, whether they differ or not.
struct Buffer {
  MemoryId memory;
  TeamId team = {};  // on a host: whose members' pieces it holds, each different one once
  BufferKind kind = BufferKind::Transient;
  bool at_start = false;     // live when the step begins
  bool at_end = false;       // live when it ends
  bool of_each = false;      // on a host: the pieces of all members, as of saved tensors
  int32_t micro_batch = -1;  // none: what all have in common; of data of the step: all of it
  // What it holds a piece of; of optimizer state: the weight. None: statistics of the pieces of a
  // coupled op (graph/coupled.h), which have no layout either.
  TensorId tensor = {};
  // Index into groups: whose members' pieces they are; into layouts: how the tensor lies when it is
  // first written. Moves in place change the layout.
  int32_t group = -1, layout = -1;
  // Index into digit_sets: the piece is shared out over the members that differ in these digits,
  // and each has its part of it (share_of). 0: nobody shares.
  int32_t share = 0;
  Bytes bytes = {};  // rounded as the allocator does
};

// What a buffer is to a task.
enum class UseKind : uint8_t {
  Input,       // operand `index` of the op
  Output,      // result `index` of the op
  Auxiliary,   // of the op
  Statistics,  // of a coupled op: made where it begins, read where it ends
  Term,        // of a sum
  Sum,         // of the terms
  From,        // of a move: goes to the buffer that is To with the same index, of which it may be
  To,          //   a part (micro-batches), or stays where it is if there is none
  Gradient,    // for update op `index`; several are added up
  Weight,      // of update op `index`
  State,       // of update op `index`: master copy, then the optimizer's tensors
  Squares,     // of a Norm: what it adds to; of an update: several are added up, and clip
};
std::string_view use_kind_name(UseKind kind);

// Tasks read and write buffers. A buffer lives from the start of the first task that uses it, or
// the start of the step, to the end of the last one, or the end of the step.
struct Use {
  BufferId buffer;
  bool write = false;
  bool adds = false;  // a result: added to what the buffer holds
  UseKind kind = UseKind::Input;
  uint32_t index = 0;
  int32_t view = -1;  // index into views: as what it is read; -1: as what it was written
};

// Another way to read what a buffer holds: a view of its tensor, or the part that each member wants
// where it has more.
struct View {
  int32_t of = -1;  // the view that this is one of; -1: the buffer itself
  TensorId tensor;
  int32_t layout = -1;
};

// What a task does that moves a tensor from one layout to another, or sums up and shares out
// several tensors at once, or merges statistics (those of the task's op, by the rule that
// exchange_of() says; an all-reduce). What is copied to and from hosts stays as it lies.
struct Movement {
  bool pairwise =
      false;  // each member gets what it lacks from those that hold it; else a collective
  Collective collective = Collective::AllReduce;
  int32_t digits = 0;  // index into digit_sets: members that differ in these only belong together
  int32_t from_group = -1, to_group = -1;
  // Of a redistribution; -1: each buffer says its own, and a share of it is what is exchanged.
  int32_t from_layout = -1, to_layout = -1;
  // Pairwise: where pieces overlap they are added up, and what nobody has is zero. Gradients, as
  // the pieces of an op whose windows overlap or leave gaps make them.
  bool sums = false;
};

struct Task {
  TaskKind kind = TaskKind::Forward;
  // Only makes the statistics of the op, which its pieces exchange before another task, with the
  // same operands, ends it.
  bool begins = false;
  int32_t price = -1;        // index into works or traffics, as moves(kind) says
  int32_t micro_batch = -1;  // none for updates
  OpId op = {};          // of the training graph, if it carries out one, or merges its statistics
  TensorId tensor = {};  // what is moved, if one
  int32_t group = -1;    // index into groups: whose members carry it out; the source of a move
  // How: ops: index into shardings; Collective, Reduce, Gather, Send: into movements; Compress and
  // Decompress: bits of an element; updates: index into digit_sets, whose shares are updated.
  // SwapIn and SwapOut: index into digit_sets, if members that differ in these copy their share
  // alone, each to its place in what is whole; kFirstMember; -1: all copy what they have.
  int32_t how = -1;
};
// Members hold the same, and the first one copies it.
constexpr int32_t kFirstMember = -2;

// A link direction that traffic shares, or several that always carry the same load.
struct SharedLink {
  std::vector<LinkDirection> directions;
  BytesPerSecond bandwidth;  // of each
};

// Traffic on shared links. Weights are in 1/1024: the bytes that cross the link when the traffic
// moves 1024 bytes of its volume.
struct SharedLoad {
  int32_t link = 0;
  int64_t weight = 0;
  bool operator==(const SharedLoad&) const = default;
};
constexpr int64_t kLoadUnit = 1024;
int64_t load_weight(const Traffic& traffic, const LinkLoad& load);

// Invariants (check_task_graph): ranges are consistent; lane lists name lanes; uses name buffers;
// the memory of a buffer exists; prices are in range. A graph made by lower() also has every
// predecessor before its task, so that its lanes cannot block one another; and it leaves out
// predecessors that come earlier on the same lane anyway.
struct TaskGraph {
  std::vector<Team> teams;
  std::vector<Lane> lanes;
  std::vector<Memory> memories;
  std::vector<SharedLink> links;

  std::vector<Work> works;
  std::vector<Traffic> traffics;
  std::vector<std::vector<SharedLoad>> loads;  // parallel to traffics

  // What tasks and buffers are told by numbers.
  std::vector<std::vector<DeviceId>> groups;
  std::vector<Layout> layouts;
  std::vector<Sharding> shardings;
  std::vector<std::vector<MemberDigit>> digit_sets;  // the first one is empty
  std::vector<Movement> movements;
  // The samples of each micro-batch, of those that each member has of the batch, if the training
  // graph is of all of them. They may overlap, where passes cut the batch in different ways. Empty:
  // the training graph is of one micro-batch.
  std::vector<Range> micro_batches;

  std::vector<Task> tasks;
  std::vector<Buffer> buffers;
  std::vector<View> views;
  // What lies on a device between steps and is moved about in a step: the buffer that has it at the
  // end, and that which has the same bytes when the next step begins.
  struct Carry {
    BufferId from, to;
  };
  std::vector<Carry> carried;

  // Lists by task: those of task i are [begin[i], begin[i + 1]) of the flat array beside.
  std::vector<uint32_t> lane_begin = {0}, predecessor_begin = {0}, use_begin = {0};
  std::vector<LaneId> task_lanes;  // at least one each; the first one's team prices the work
  std::vector<TaskId> predecessors;
  std::vector<Use> uses;

  size_t size() const { return tasks.size(); }
  std::span<const LaneId> lanes_of(TaskId id) const { return list(task_lanes, lane_begin, id); }
  std::span<const TaskId> predecessors_of(TaskId id) const {
    return list(predecessors, predecessor_begin, id);
  }
  std::span<const Use> uses_of(TaskId id) const { return list(uses, use_begin, id); }

  const Task& operator[](TaskId id) const { return tasks[id.index()]; }
  const Buffer& operator[](BufferId id) const { return buffers[id.index()]; }
  const Lane& operator[](LaneId id) const { return lanes[id.index()]; }
  const Team& operator[](TeamId id) const { return teams[id.index()]; }
  const Memory& operator[](MemoryId id) const { return memories[id.index()]; }

  // Removes tasks and buffers; the lists are ready for the first task.
  void clear_tasks();
  // Appends a task and its lists. Returns its id.
  TaskId add(const Task& task, std::span<const LaneId> on, std::span<const TaskId> after,
             std::span<const Use> using_buffers);
  // Appends a task whose lists have been appended to the flat arrays already.
  TaskId finish(const Task& task) {
    tasks.push_back(task);
    lane_begin.push_back(static_cast<uint32_t>(task_lanes.size()));
    predecessor_begin.push_back(static_cast<uint32_t>(predecessors.size()));
    use_begin.push_back(static_cast<uint32_t>(uses.size()));
    return TaskId(tasks.size() - 1);
  }
  BufferId add(const Buffer& buffer) {
    buffers.push_back(buffer);
    return BufferId(buffers.size() - 1);
  }

 private:
  template <typename T>
  static std::span<const T> list(const std::vector<T>& flat, const std::vector<uint32_t>& begin,
                                 TaskId id) {
    return {flat.data() + begin[id.index()], flat.data() + begin[id.index() + 1]};
  }
};

// Throws Error{Internal} naming the first violated invariant.
void check_task_graph(const TaskGraph& graph);

// Fills `links` and `loads` from `traffics`: directions that carry the same in all traffic become
// one.
void share_links(TaskGraph& graph, const Machine& machine);
// The same for traffics that were added at the end since, as long as the links stay what they are:
// false if new traffic tells links apart that carried the same so far.
bool extend_links(TaskGraph& graph, const Machine& machine);

}  // namespace windlass
