// The walk that turns a strategy into tasks: item by item of the schedule, op by op.
//
// A value is a tensor of one micro-batch as it lies on one group in one layout, in a buffer. Ops
// ask for the value they want; if it is not there it is made from one that is, by a redistribution,
// a copy from the host or by computing it again. Buffers live exactly as long as tasks use them, so
// whoever asks for the value of the forward pass in the backward pass keeps it alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "windlass/task/emitter_types.h"
#include "windlass/task/lower.h"
#include "windlass/task/order.h"
#include "windlass/task/recompute.h"
#include "windlass/task/tables.h"
#include "windlass/task/teams.h"

namespace windlass {

class Emitter : private EmitterTypes {
 public:
  Emitter(const TrainingGraph& training, const TrainingFacts& facts, const Machine& machine,
          Tables& tables, TaskGraph& graph);

  // Replaces the tasks of the graph by those of the strategy. Storage is reused from call to call.
  void run(const Strategy& strategy);

 private:
  // --- emit_ops.cpp
  void prepare(const Strategy& strategy);
  void plan_stashes();  // emit_stashes.cpp
  void run_item(const WorkItem& item);
  void stash_after(OpId op, const WorkItem& item);  // emit_stashes.cpp
  void forward(OpId op, int32_t micro_batch, int32_t group, Phase phase);
  void backward(const BackwardOp& op, int32_t micro_batch, int32_t group);
  void backward_view(const BackwardOp& op, const OpTemplate& made, int32_t micro_batch,
                     int32_t group);
  // What the op being emitted reads, all of it before what it makes.
  void begin_op();
  void read(Phase phase, std::span<const ReadTemplate> reads, const TensorId* tensors,
            int32_t micro_batch, int32_t group);
  void make(const ResultTemplate& result, BufferId buffer, bool adds = false);
  // The first team's task that makes the results; those of the others follow.
  TaskId run_op(const Task& model, const OpTemplate& made, int32_t group);
  // The uses [begin, end) of the op, by a team.
  void use_all(size_t begin, size_t end, size_t team) {
    const size_t first = graph_.uses.size();
    const auto list = op_uses_.begin();
    graph_.uses.insert(graph_.uses.end(), list + static_cast<ptrdiff_t>(begin),
                       list + static_cast<ptrdiff_t>(end));
    if (team == 0) return;
    for (size_t i = first; i < graph_.uses.size(); ++i) {
      BufferId& buffer = graph_.uses[i].buffer;
      buffer = BufferId(buffer.index() + team);
    }
  }
  Value exchange_statistics(const Task& model, const OpTemplate& made, int32_t group);
  void put_results(Phase phase, std::span<const ResultTemplate> results, const TensorId* tensors,
                   TaskId done, int32_t micro_batch, int32_t group);
  void accumulate(OpId op, int32_t micro_batch, int32_t group);
  // The template of a forward op as the strategy splits it.
  const OpTemplate& made_of(OpId op, int32_t group) {
    return tables_.op(op, sharding_ids_[op.index()], group_id(group));
  }

  // The same for a team; `first` is that of the first one.
  const OpTemplate& made_of(OpId op, int32_t group, size_t team, const OpTemplate& first) {
    if (!unequal_ || team == 0) return first;
    return tables_.op_of_member(op, sharding_ids_[op.index()], group_id(group),
                                teams(group).members[team][0]);
  }

  // --- emit_values.cpp
  // Elements of a tensor in a layout that each member of a team has room for, of `most` that
  // members of any team have.
  int64_t own(int64_t most, TensorId tensor, int32_t layout, int32_t group, size_t team) {
    if (!unequal_ || !tables_.unequal(layout)) return most;
    return tables_.elements_of_member(tensor, layout, teams(group).members[team][0]);
  }
  // References to values are good until the next one is asked for.
  const Value& value(Phase phase, TensorId tensor, int32_t micro_batch, const OperandTemplate& want,
                     int32_t group);
  const Value& saved_value(TensorId tensor, int32_t micro_batch, int32_t layout, int32_t group);
  const Value& data(TensorId tensor, int32_t micro_batch, const OperandTemplate& want,
                    int32_t group);
  const Value* find(Phase phase, TensorId tensor, int32_t micro_batch, int32_t layout,
                    int32_t group) const {
    for (int32_t i = heads_[phase][row(tensor, micro_batch)]; i >= 0;) {
      const Value& value = values_[static_cast<size_t>(i)];
      if (value.group == group && value.layout == layout) return &value;
      i = value.next;
    }
    return nullptr;
  }
  // The one that was made first.
  const Value* first(Phase phase, TensorId tensor, int32_t micro_batch) const {
    const int32_t head = heads_[phase][row(tensor, micro_batch)];
    return head < 0 ? nullptr : &values_[static_cast<size_t>(head)];
  }
  Value& put(Phase phase, TensorId tensor, int32_t micro_batch, const Value& value) {
    Value& made = put(phase, tensor, micro_batch);
    made = value;
    made.next = -1;
    return made;
  }
  // One that is filled in where it is: written in parts and then copied, it would be waited for.
  Value& put(Phase phase, TensorId tensor, int32_t micro_batch) {
    int32_t* link = &heads_[phase][row(tensor, micro_batch)];
    while (*link >= 0) link = &values_[static_cast<size_t>(*link)].next;
    *link = static_cast<int32_t>(values_.size());
    return values_.emplace_back();
  }
  const Value& redistribute(Phase phase, TensorId tensor, int32_t micro_batch, const Value& from,
                            int32_t layout, int32_t group);
  // One step of a redistribution; `group` is where it goes if it crosses to another one.
  Value carry(TensorId tensor, int32_t micro_batch, const MoveTemplate& move, int32_t movement,
              const Value& from, int32_t group);
  void stash(TensorId tensor, int32_t micro_batch, const Value& value, MemoryAction action);
  Value restore(TensorId tensor, int32_t micro_batch, const Value& value, int32_t group);
  void prefetch(const BackwardOp& op, int32_t micro_batch, int32_t group);
  // Whether who runs the step keeps such a buffer from step to step.
  bool keeps(BufferKind kind, int32_t micro_batch) const {
    return keeps_gradients_ && kind == BufferKind::WeightGradient && micro_batch < 0;
  }
  // What a buffer holds: a tensor, as it lies.
  struct Content {
    BufferKind kind = BufferKind::Transient;
    TensorId tensor = {};
    int32_t micro_batch = -1;
    int32_t layout = -1;
    int32_t share = 0;
  };
  BufferId buffers(int32_t group, const Content& content, int64_t bytes, bool at_start = false,
                   bool at_end = false);
  // A buffer for each team like `model`, which lacks memory, micro-batch and tensor.
  BufferId buffers(int32_t group, int32_t micro_batch, TensorId tensor, const Buffer& model) {
    const size_t first = graph_.buffers.size();
    for (TeamId team : teams(group).teams) {
      graph_.buffers.push_back(model);
      Buffer& buffer = graph_.buffers.back();
      buffer.memory = graph_[team].memory;
      buffer.micro_batch = micro_batch;
      buffer.tensor = tensor;
      if (keeps(model.kind, micro_batch)) buffer.at_start = buffer.at_end = true;
    }
    if (unequal_) fit_buffers(BufferId(first), group);
    return BufferId(first);
  }
  void fit_buffers(BufferId first, int32_t group);
  int32_t batch_of_fixed(TensorId tensor) const;
  // Bytes of a team, of so many that a team with the largest pieces has.
  int64_t own_bytes(int64_t most, const Content& content, int32_t group, size_t team);
  BufferId host_buffers(int32_t group, const Content& content, int64_t bytes, bool shared,
                        bool persistent);
  void combine(BufferId first, size_t count, int32_t layout);
  // The layout of what the buffer itself holds, whatever view of it a value is. Only where
  // something leaves its memory.
  int32_t buffer_layout(const Value& value) const;
  // The value seen as another tensor, or as the part that another layout wants.
  void see(Value& value, TensorId tensor, int32_t layout) {
    graph_.views.push_back({.of = value.view, .tensor = tensor, .layout = layout});
    value.view = static_cast<int32_t>(graph_.views.size() - 1);
    value.layout = layout;
  }

  // --- emit_weights.cpp
  void plan_weights();
  void make_units();
  void add_tied_state(int32_t u, const OperandTemplate& want, int32_t group);
  const Value& weight(TensorId tensor, const OperandTemplate& want, int32_t group);
  Value stream(int32_t update, TensorId tensor, int32_t layout, int32_t group);
  void fetch(int32_t unit, int32_t wanted_by);
  BufferId rest_buffers(int32_t update);
  const Op& update_op(int32_t update) const;
  // The weight of an update op, where it is updated.
  const Value& home_weight(int32_t update);

  // --- emit_gradients.cpp
  int32_t sum_for(int32_t update, const ResultTemplate& term, int32_t group, int32_t micro_batch);
  void add_term(int32_t update, const Value& term, int32_t micro_batch);
  void finish_term(int32_t update, int32_t sum, int32_t micro_batch, TaskId done);
  void finish_gradient(int32_t update);
  void add_extra(int32_t update, const Sum& sum);
  void queue(int32_t update, int32_t sum);
  bool reduced_each_time(int32_t update, int32_t layout);
  Bucket& bucket_of(const BucketKey& key);
  void flush(Bucket& bucket);
  void flush_all();
  void reduce(const Bucket& bucket);

  // --- emit_updates.cpp
  void finish_updates();
  void update(const BucketKey& key, size_t first_sum);
  void update_on_device(const BucketKey& key, std::span<const SumRef> sums);
  void update_on_host(const ReadyUpdate& ready);
  HostPart leave_for_host(const BucketKey& key, std::span<const SumRef> sums, size_t team);
  TaskId update_there(const HostUpdate& update, size_t team);
  void finish_on_host(const HostUpdate& update, const std::vector<TaskId>& done);
  void add_extras(const SumRef& ref);
  void gather_weights(const BucketKey& key, std::span<const SumRef> sums,
                      const std::vector<TaskId>& done, int64_t weight_bytes);
  void refresh_copies();
  WeightState& weight_of(const SumRef& ref) { return weights_[static_cast<size_t>(ref.update)]; }
  Sum& sum_of(const SumRef& ref) { return weight_of(ref).sums[static_cast<size_t>(ref.sum)]; }
  const TrainingFacts::Update& update_of(int32_t update) const {
    return facts_.updates[static_cast<size_t>(update)];
  }
  std::span<const SumRef> sums_of(const ReadyUpdate& ready) const {
    return {ready_sums_.data() + ready.begin, ready_sums_.data() + ready.end};
  }

  // --- emit_norm.cpp
  bool clips() const { return training_.squares.valid(); }
  int32_t scattered(int32_t group);
  int32_t everywhere(int32_t group);
  Squares& squares_of(int32_t group, bool host);
  void add_squares(const ReadyUpdate& ready);
  TaskId add_squares_on_host(const BucketKey& key, std::span<const SumRef> sums, size_t team,
                             const HostPart& part);
  void exchange_squares();
  Value from_hosts(const Squares& squares);
  void norm_to_hosts(int32_t group);

  // --- tasks
  // The lists of the task being put together are the ends of the graph's own.
  void on(LaneId lane) { graph_.task_lanes.push_back(lane); }
  TaskId add(const Task& task);
  void after(Done done, size_t team) {
    if (!done.ready.valid()) return;
    after(done.per_team ? TaskId(done.ready.index() + team) : done.ready);
  }
  void after(const Value& value, size_t team) { after({value.ready, value.per_team}, team); }
  // For a task on the compute lane of the value's own group: what was computed there is there.
  void compute_after(const Value& value, size_t team) {
    if (!value.computed) after(value, team);
  }
  void after(TaskId task) {
    if (task.valid()) add_predecessor(task);
  }
  void add_predecessor(TaskId task);
  void sort_predecessors();
  void use(Use model, size_t team) {
    model.buffer = BufferId(model.buffer.index() + team);
    graph_.uses.push_back(model);
  }
  void read(const Value& value, size_t team, UseKind kind, size_t index = 0) {
    use({.buffer = value.buffer,
         .kind = kind,
         .index = static_cast<uint32_t>(index),
         .view = value.view},
        team);
  }
  void read(BufferId buffer, size_t team, UseKind kind, size_t index = 0) {
    use({.buffer = buffer, .kind = kind, .index = static_cast<uint32_t>(index)}, team);
  }
  void write(BufferId buffer, size_t team, UseKind kind, size_t index = 0, bool adds = false) {
    use({.buffer = buffer,
         .write = true,
         .adds = adds,
         .kind = kind,
         .index = static_cast<uint32_t>(index)},
        team);
  }
  const GroupTeams& teams(int32_t group) const { return teams_->of_group(group); }
  int32_t group_id(int32_t group) const { return group_ids_[static_cast<size_t>(group)]; }
  size_t row(TensorId tensor, int32_t micro_batch) const {
    return static_cast<size_t>(micro_batch) * facts_.origin.size() + tensor.index();
  }
  std::span<const OpId> again_before(OpId backward) const {
    if (recompute_.before.empty()) return {};
    return recompute_.before[backward.index()];
  }
  MemoryAction action(TensorId tensor) const;
  int64_t bytes(TensorId tensor, int64_t elements) const {
    return elements * facts_.element_size[tensor.index()];
  }

  const TrainingGraph& training_;
  const Machine& machine_;
  const TrainingFacts& facts_;
  Tables& tables_;
  TaskGraph& graph_;
  const Strategy* strategy_ = nullptr;
  std::vector<std::vector<DeviceId>> groups_;  // that the teams were made of
  std::vector<Bytes> usable_;                  // of each member, when the teams were made
  bool in_turn_ = false;                       // of the strategy that the teams were made for
  bool on_hosts_ = false;                      // whether it uses hosts
  std::vector<std::vector<int32_t>> kinds_;    // its size_kinds()
  bool unequal_ = false;                       // whether some parts are
  std::unique_ptr<Teams> teams_;
  std::vector<int32_t> group_ids_;                     // interned
  std::vector<Sharding> shardings_;                    // that were listed last
  std::vector<int32_t> listed_ids_;                    // parallel to shardings_
  std::vector<int32_t> sharding_ids_;                  // by forward op
  std::vector<int32_t> stage_of_;                      // by op of the training graph
  std::vector<std::vector<BackwardOp>> backward_ops_;  // by stage
  std::vector<std::vector<int32_t>> stash_after_;      // by forward op: saved tensors
  RecomputePlan recompute_;                            // empty if nothing is
  bool offloads_ = false;
  bool keeps_all_ = false;     // every saved tensor is kept as it is
  std::vector<Stage> stages_;  // that stage_of_ and backward_ops_ were made for

  std::vector<Value> values_;
  std::vector<int32_t> heads_[2];
  std::map<int32_t, Stash> stashes_;  // by buffer
  std::vector<int32_t> combined_;     // by buffer, as far as it goes: its layout since partial
                                      // sums were combined; -1: they were not
  std::vector<TaskId> last_compute_;  // by team

  std::vector<WeightState> weights_;
  std::vector<Streamed> streamed_;  // by update and group; empty if nothing is streamed
  std::vector<Unit> units_;
  std::vector<Bucket> buckets_;  // the first bucket_count_, in the order of their first sums
  size_t bucket_count_ = 0;
  std::vector<ReadyUpdate> ready_updates_;
  std::vector<HostUpdate> host_updates_;  // that wait for the norm
  std::vector<Squares> squares_;
  std::vector<Norm> norms_;  // by group
  std::vector<SumRef> ready_sums_;

  int32_t run_ = 0;  // of the item being emitted
  int32_t item_stage_ = 0;
  bool item_backward_ = false;

  // Terms of each weight's gradient that are still to come in the step, and how many a micro-batch
  // has. By update and group.
  std::vector<int32_t> terms_left_, terms_each_;
  // Those still to come of each micro-batch, by update, group and micro-batch. Empty if no sum is
  // reduced each time.
  std::vector<int32_t> batch_terms_left_;
  Streamed& streamed(int32_t update, int32_t group) { return streamed_[at_group(update, group)]; }
  size_t at_group(int32_t update, int32_t group) const {
    return static_cast<size_t>(update) * strategy_->groups.size() + static_cast<size_t>(group);
  }

  std::vector<Use> op_uses_;  // of the op being emitted, in buffers of the first team: what it
  size_t op_reads_ = 0;       // reads, so many, and then what it makes
  std::vector<Awaited> op_awaits_;
  std::vector<int32_t> op_sums_;  // that its terms of gradients are added to
  std::vector<Value> terms_;
  std::vector<int32_t> last_sums_;  // of the gradient that is finished
  std::vector<BufferId> update_weights_, update_states_;
  bool keeps_gradients_ = false;
  Value passing_;  // one that is kept nowhere else
};

}  // namespace windlass
