// Packs of layers at the grain of ops: the walk over packs ends in tasks of ops and buffers of
// tensors, on the lanes and in the window of the walk.
//
// Replicas have equal shares of the samples, and a micro-batch is a range of each share; its ops
// are pieces of those of the whole batch. Where the passes cut the batch differently, samples are
// joined. Buffers live as long as tasks use them, so that what a pack keeps, recomputes or offloads
// follows from which values its backward ops read.
#pragma once

#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "windlass/task/packs/op_chain.h"
#include "windlass/task/packs/pack_sink.h"

namespace windlass {

class OpSink final : public PackSink {
 public:
  OpSink(const OpChain& chain, PackTeams& teams, const PackStrategy& strategy);

  std::vector<Part> cut(int32_t layer, int64_t parts) override;
  void begin_pack(Pack pack, bool backward) override;
  BufferId buffer(MemoryId memory, BufferKind kind, const PackLabel& what) override;
  TaskId compute(TaskKind kind, LaneId lane, const PackLabel& what) override;
  TaskId move(TaskKind kind, LaneId lane, PackMove how, const PackLabel& what) override;

 private:
  struct Value {
    BufferId buffer;
    int32_t view = -1;
    TaskId ready;  // none: from the start
  };
  using Values = std::map<TensorId, Value>;
  // What the walk calls a buffer: tensors that are made or moved together. Tensors of data that are
  // on the host have no value: they are there anyway.
  struct Handle {
    MemoryId memory;
    PackLabel what;
    Values values;
  };
  // A weight or buffer of layers that move together.
  struct Place {
    TensorId tensor;
    int32_t update = -1;
    bool home = false;   // it is updated with these layers
    bool begun = false;  // the gradient holds a term
    Value weight = {}, share = {}, gradient = {}, state = {};
  };
  // What the walk has said of the task at hand.
  struct Words {
    std::vector<TaskId> after;
    std::vector<size_t> reads, writes;  // handles
  };
  // Where the ops at hand run.
  struct Here {
    TaskKind kind = TaskKind::Forward;
    int32_t team = 0;
    LaneId lane;
    int32_t micro_batch = 0;
    size_t pack = 0;               // backward pack, of the backward pass
    Values* now = nullptr;         // what this pass has made of the micro-batch
    const Values* kept = nullptr;  // what the forward pass has kept of it
  };

  // --- op_sink.cpp
  Words take();
  TaskId add(const Task& task, LaneId lane, int32_t team);
  TaskId nothing(const Words& words);
  void bind(const Words& words, bool forward);
  void bind_inputs(const Words& words);
  TaskId move_flow(TaskKind kind, LaneId lane, PackMove how, int32_t team, const PackLabel& what,
                   const Words& words);
  int32_t micro_batch(const PackLabel& what);

  // --- op_emit.cpp
  void forward(OpId op);
  void backward(OpId op, int32_t layer);
  void sum(OpId op, int32_t layer);
  void add_term(int32_t update, TensorId term, int32_t layer);
  TaskId emit(Task task);
  Value look(TensorId tensor, int32_t layer);
  Value data(TensorId tensor);
  Value constant(TensorId tensor);
  Value see(Value value, TensorId tensor);
  Value join(TensorId tensor, const std::vector<Value>& parts);
  void write_gradient(Place& place, UseKind kind, size_t index);
  // Calls visit(tensor) for what the backward ops of layers read of the forward pass.
  template <class Visit>
  void for_saved(const Pack& layers, Visit&& visit) const;
  const std::vector<bool>& needed(size_t pack);
  const std::vector<TensorId>& saved_of(size_t pack);
  std::set<TensorId> state_read(size_t pack);
  int32_t work(OpId op);
  int32_t work(const Work& work);
  int32_t sharding(OpId op);

  // --- op_state.cpp
  std::vector<size_t>& piece(const PackLabel& what);
  std::vector<size_t> make_places(const std::vector<TensorId>& tensors, Pack layers);
  Place& place(int32_t layer, TensorId tensor) { return places_[place_of_.at({layer, tensor})]; }
  TaskId move_state(TaskKind kind, LaneId lane, PackMove how, int32_t team, const PackLabel& what,
                    const Words& words);
  TaskId update_on_host(LaneId lane, int32_t team, const PackLabel& what, const Words& words);
  TaskId update_on_device(LaneId lane, int32_t team, const PackLabel& what, const Words& words);
  TaskId swap(TaskKind kind, LaneId lane, PackMove how, int32_t team, int64_t bytes, bool whole);
  int64_t gradient_to_host(Place& place, size_t index);
  int32_t settle_gradients(int32_t team, const std::vector<size_t>& list);
  Value host_weight(TensorId tensor);
  void write_host_weight(TensorId tensor, UseKind kind, size_t index);
  Value host_state(int32_t update);
  Work update_work_of(std::span<const int32_t> updates) const;

  // Buffers, and the uses of the task being put together.
  BufferId make(int32_t team, BufferKind kind, TensorId tensor, int32_t micro_batch);
  BufferId make_on_host(BufferKind kind, TensorId tensor, int32_t micro_batch, int64_t bytes,
                        bool at_start, bool at_end);
  void read(const Value& value, UseKind kind, size_t index) {
    after(value.ready);
    uses_.push_back({.buffer = value.buffer,
                     .kind = kind,
                     .index = static_cast<uint32_t>(index),
                     .view = value.view});
  }
  void write(const Value& value, UseKind kind, size_t index, bool adds = false) {
    after(value.ready);
    uses_.push_back({.buffer = value.buffer,
                     .write = true,
                     .adds = adds,
                     .kind = kind,
                     .index = static_cast<uint32_t>(index)});
  }
  void after(TaskId task) {
    if (task.valid()) after_.push_back(task);
  }
  int32_t layout(TensorId tensor);
  int32_t layout(int32_t axis, int64_t size, const Digit& digit);
  int32_t copies() { return layout(-1, 0, {.parts = strategy_.replicas}); }
  int64_t elements(TensorId tensor, int32_t micro_batch) const;  // of a member
  int64_t bytes(TensorId tensor, int32_t micro_batch) const {
    return elements(tensor, micro_batch) * chain_.facts.element_size[tensor.index()];
  }
  int64_t share(int64_t elements) const {
    return (elements + strategy_.replicas - 1) / strategy_.replicas;
  }
  int32_t movement(const Movement& movement);
  bool apart(TensorId tensor) const {
    return chain_.samples.kind[tensor.index()] == SampleKind::Apart;
  }

  const OpChain& chain_;
  const TrainingGraph& training_;
  PackTeams& teams_;
  const PackStrategy& strategy_;
  TaskGraph& graph_;
  bool shared_ = false;          // replicas read and write shares
  std::set<TensorId> wanted_;    // weights and buffers that the pack at hand has a use for
  std::vector<size_t> pack_of_;  // backward pack, by layer

  std::vector<Handle> handles_;
  Here here_;
  std::vector<TaskId> first_after_;  // what the first op at hand waits for
  // What the forward pass has made, by team and micro-batch; the backward pass of the pack at hand,
  // by micro-batch.
  std::map<std::pair<int32_t, int32_t>, Values> made_forward_;
  std::map<int32_t, Values> made_backward_;
  Values brought_;                    // data and what is made of it, of the pack and micro-batch
  std::vector<TaskId> last_compute_;  // by team
  std::vector<std::pair<TaskId, TaskId>> before_data_;  // by team: of the two micro-batches before
  std::map<std::pair<int32_t, TensorId>, Value> constants_;  // by team
  Values host_data_, host_weights_;
  std::map<std::pair<TensorId, LaneId>, TaskId> fetched_;  // who read host weights last
  std::map<int32_t, Value> host_states_;                   // by update
  std::map<int32_t, std::vector<Value>> host_gradients_;   // by update: terms on the host
  std::vector<Place> places_;
  std::map<std::pair<int32_t, TensorId>, size_t> place_of_;            // by layer
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> pieces_;  // by first layer and part
  std::map<size_t, std::vector<bool>> needed_;                         // by backward pack
  std::map<size_t, std::vector<TensorId>> saved_;                      // by backward pack

  std::vector<TaskId> after_;
  std::vector<Use> uses_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> views_;  // buffer, view of it, tensor
  std::map<std::pair<int32_t, int64_t>, int32_t> layouts_;          // axis and size; -1, -2: none
  std::map<std::pair<OpId, int64_t>, int32_t> works_;               // by op and samples
  std::map<int32_t, int32_t> shardings_;                            // by loop
};

}  // namespace windlass
