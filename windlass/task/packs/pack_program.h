// The walk of pack_tasks.cpp over one strategy: what is where, and since which task. It ends in
// tasks of layers, or in what a sink makes of it.
#pragma once

#include <span>

#include "windlass/task/packs/pack_sink.h"
#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

// At least one.
Nanoseconds whole_nanoseconds(double seconds);

// Emits the tasks of one strategy into a graph.
class PackProgram {
 public:
  PackProgram(PackLowering& lowering, PackTeams& teams, const PackStrategy& strategy,
              int64_t minibatch, PackSink* sink = nullptr);
  // False if state_bytes cannot hold a pack.
  bool add_step();
  const SwapVolume& volume() const { return volume_; }

 private:
  // Layers whose weights move together, or a part of one layer, and where they are now.
  struct Piece {
    Pack layers;
    int32_t part = 0, parts = 1;
    int64_t state = 0, weights = 0;  // bytes with and without buffers
    int64_t optimizer = 0;           // bytes
    double update = 0;               // seconds on the host
    bool on_device = false;          // is updated there
    int32_t team = -1;               // that loaded it last
    int64_t loaded_by = -1;          // task
    size_t entry = 0;                // of that load
    bool cached = false;             // loaded forward and still there
    BufferId buffer, gradient;
    BufferId share;  // kept since the forward pass, on
    int32_t share_team = -1;
    TaskId ready, share_ready;
    TaskId updated;  // or, without weights, computed last in the step before
    TaskId stored;   // optimizer state on the host, after an update on the device
  };
  // A place in the window for weights and gradients, from a load to its release.
  struct Entry {
    size_t piece = 0;
    int64_t bytes = 0;
    TaskId released;  // none as long as it is in use
  };
  // A tensor of one micro-batch on a team.
  struct Flow {
    TaskId made;
    BufferId buffer;
  };
  // Input of a backward pack, by forward micro-batch.
  struct Stash {
    int32_t team = -1;
    std::vector<Flow> device, host;
    std::vector<Flow> activations;  // of the whole pack, if kept or offloaded
  };
  struct TeamState {
    std::vector<size_t> window;  // entries, oldest first
    int64_t held = 0;            // bytes of those
    TaskId last_compute;         // of all tasks so far
    TaskId room;                 // computed one micro-batch earlier: when a buffer is free again
    TaskId updated, updated_before;  // the last updates on the device: when theirs is
    int64_t last_task = -1;          // task of the pipeline that ran last, if it was a forward one
    TaskId gate;                     // what its first computing in a step waits for
  };
  struct Range {
    size_t first = 0, last = 0;  // both included
  };

  void cut_pieces();
  void cut_large(const Piece& piece);
  void bring(int32_t team, Piece& piece, bool backward);
  PackLabel label(PackData what, const Piece& piece) const {
    return {what, piece.layers, 0, 0, piece.part, piece.parts};
  }
  // Pieces that are computed together, of those in a range: as few as can be.
  Range group_at(size_t piece) const { return groups_[group_of_[piece]]; }
  Range pieces_of(Pack pack) const;
  int64_t working_set(bool forward, Pack layers, int64_t size);
  // Of the backward pass alone: without recomputing.
  Nanoseconds computing(bool forward, Pack layers, int64_t size);
  int64_t activation_bytes(Pack pack, int64_t size);
  bool on_host(size_t backward_pack) const;
  size_t task_count() const {
    return strategy_.forward_packs.size() + strategy_.backward_packs.size();
  }
  int32_t team_of(size_t task) const {
    return static_cast<int32_t>(task % static_cast<size_t>(strategy_.depth));
  }
  // Forward micro-batches that share samples with a backward one.
  Range sources(size_t backward) const;

  bool load(int32_t team, size_t task, Range pieces, bool backward);
  void order_loads(size_t task, Range pieces);
  bool make_room(TeamState& state, int64_t bytes);
  bool forward_task(size_t task);
  bool backward_task(size_t task);
  Flow compute_forward(size_t part, Range pieces, bool whole, Flow input, int32_t team);
  void keep_stash(size_t pack, size_t part, const Flow& flow, int32_t team);
  void wait_for_weights(Range pieces);
  void finish_piece(int32_t team, Piece& piece, TaskId last);
  void end_task(TeamState& state, int64_t forward_task);
  void update_on_host(int32_t team, Piece& piece, TaskId summed);
  void update_on_device(int32_t team, Piece& piece, TaskId summed);
  // The output of the task before, on the team of `task`.
  Flow receive(size_t task, const Flow& made, int64_t bytes, const PackLabel& what, TaskId room);
  Flow from_host(std::span<const Flow> parts, int32_t team, int64_t bytes, const PackLabel& what,
                 TaskId room);
  Flow to_host(const Flow& flow, int32_t team, int64_t bytes, const PackLabel& what);
  // Sets inputs_.
  void find_inputs(size_t pack, size_t part, size_t task, TaskId room);

  TaskId emit(TaskKind kind, LaneId lane, Nanoseconds duration, const PackLabel& what,
              int64_t workspace = 0) {
    if (sink_ != nullptr) return sink_->compute(kind, lane, what);
    lowering_.times_.duration.push_back(duration);
    lowering_.times_.workspace.push_back(workspace);
    if (lowering_.labels_) lowering_.result_.tasks.push_back(what);
    graph_.task_lanes.push_back(lane);
    return graph_.finish(Task{.kind = kind, .price = 0, .micro_batch = -1, .op = {}, .tensor = {}});
  }
  TaskId move(TaskKind kind, LaneId lane, PackMove how, int32_t team, int64_t bytes,
              const PackLabel& what);
  // Of the task that is emitted next; they go to the graph right away.
  void after(TaskId task) {
    if (task.valid()) graph_.predecessors.push_back(task);
  }
  void uses(BufferId buffer, bool write = false) {
    if (buffer.valid()) graph_.uses.push_back({buffer, write});
  }
  std::span<const TaskId> waited_for() const {
    return std::span(graph_.predecessors).subspan(graph_.predecessor_begin.back());
  }
  void wait_for_none() { graph_.predecessors.resize(graph_.predecessor_begin.back()); }
  BufferId buffer(MemoryId memory, BufferKind kind, int64_t bytes, const PackLabel& what) {
    if (sink_ != nullptr) return sink_->buffer(memory, kind, what);
    if (lowering_.labels_) lowering_.result_.buffers.push_back(what);
    return graph_.add(Buffer{.memory = memory, .kind = kind, .bytes = Bytes(bytes)});
  }
  // Of a micro-batch: the input of a layer or its gradient, and what a pack saves.
  PackLabel forward_label(PackData what, Pack layers, size_t part) const {
    const int64_t begin = static_cast<int64_t>(part) * strategy_.forward_microbatch;
    return {what, layers, begin, begin + forward_sizes_[part], 0, 1};
  }
  PackLabel backward_label(PackData what, Pack layers, size_t part) const {
    const int64_t begin = static_cast<int64_t>(part) * strategy_.backward_microbatch;
    return {what, layers, begin, begin + backward_sizes_[part], 0, 1};
  }
  // What one member of a team has of bytes that replicas share out.
  int64_t share_of(int64_t bytes) const {
    return (bytes + strategy_.replicas - 1) / strategy_.replicas;
  }

  PackLowering& lowering_;
  PackTeams& teams_;
  TaskGraph& graph_;
  ChainTables& chain_;
  const PackStrategy& strategy_;
  PackSink* sink_ = nullptr;
  int64_t samples_ = 0;
  std::vector<int64_t> forward_sizes_, backward_sizes_;
  std::vector<Piece> pieces_;
  std::vector<Range> of_layer_;   // pieces of each layer
  std::vector<Range> groups_;     // of pieces: whole layers
  std::vector<size_t> group_of_;  // by piece
  std::vector<size_t> pack_of_;   // backward pack, by layer
  std::vector<Entry> entries_;
  std::vector<Stash> stashes_;  // by backward pack
  std::vector<TeamState> states_;
  TaskId loss_;                   // the last task of the loss pack
  std::vector<Flow> outputs_;     // of the task before, by micro-batch
  std::vector<Flow> made_;        // of the task at hand
  std::vector<Flow> received_;    // outputs of the task before, by the loss pack
  std::vector<Flow> inputs_;      // of the micro-batch at hand
  std::vector<size_t> order_;     // of pieces that are loaded
  std::vector<TaskId> space_;     // what must be released before the task at hand computes
  std::vector<TaskId> computed_;  // of the task at hand
  SwapVolume volume_;
  // Of the micro-batch at hand: stashes made on the way, and packs whose activations are kept.
  std::vector<std::pair<size_t, Flow>> inner_;
  std::vector<size_t> kept_;
};

}  // namespace windlass
