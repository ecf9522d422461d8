// Ops: one task for each team of the group, and what the pieces exchange.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {

TrainingFacts::TrainingFacts(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  const size_t tensors = graph.tensors.size();
  roots = storage_roots(graph);
  for (const Tensor& tensor : graph.tensors) {
    element_size.push_back(static_cast<uint8_t>(element_bytes(tensor.type.dtype)));
    Origin from = Origin::Fixed;
    if (tensor.producer.valid())
      from = Origin::Made;
    else if (tensor.role == TensorRole::Weight)
      from = Origin::Weight;
    else if (tensor.role == TensorRole::Input || tensor.role == TensorRole::Label)
      from = Origin::Data;
    origin.push_back(from);
  }
  std::vector<int32_t> by_root(tensors, -1);
  for (size_t i = 0; i < training.saved.size(); ++i)
    by_root[training.saved[i].tensor.index()] = static_cast<int32_t>(i);
  saved_index.resize(tensors);
  for (size_t t = 0; t < tensors; ++t) saved_index[t] = by_root[roots[t].index()];

  update_index.assign(tensors, -1);
  first_use.resize(graph.ops.size() - training.forward_ops - training.backward_ops);
  term_of.assign(tensors, -1);
  dropped.assign(graph.ops.size(), false);
  const size_t first_update = training.forward_ops + training.backward_ops;
  std::vector<int32_t> readers(tensors, 0);
  for (const Op& op : graph.ops)
    for (TensorId id : op.inputs)
      if (id.valid()) ++readers[id.index()];
  for (size_t i = first_update; i < graph.ops.size(); ++i) {
    const auto update = static_cast<int32_t>(i - first_update);
    const Op& op = graph.ops[i];
    update_index[op.inputs[0].index()] = update;
    std::vector<TensorId>& list = terms.emplace_back();
    std::vector<TensorId> pending = {op.inputs[1]};
    while (!pending.empty()) {
      const TensorId id = pending.back();
      pending.pop_back();
      const OpId producer = graph[id].producer;
      const bool sum = producer.valid() && graph[producer].kind == OpKind::Accumulate &&
                       readers[id.index()] == 1;
      if (sum) {
        dropped[producer.index()] = true;
        for (TensorId term : graph[producer].inputs) pending.push_back(term);
        continue;
      }
      list.push_back(id);
      // A gradient that others read too is added by a task of its own.
      if (graph[id].role == TensorRole::WeightGradient && readers[id.index()] == 1)
        term_of[id.index()] = update;
      else if (producer.valid())
        shared_terms.emplace_back(update, id);
    }
  }
  for (size_t i = training.forward_ops; i-- > 0;)
    for (size_t k = 0; k < graph.ops[i].inputs.size(); ++k) {
      const TensorId id = graph.ops[i].inputs[k];
      if (id.valid() && update_index[id.index()] >= 0)
        first_use[static_cast<size_t>(update_index[id.index()])] = {OpId(i),
                                                                    static_cast<int32_t>(k)};
    }
}

Emitter::Emitter(const TrainingGraph& training, const Machine& machine, Tables& tables,
                 TaskGraph& graph)
    : training_(training), machine_(machine), facts_(training), tables_(tables), graph_(graph) {}

void Emitter::prepare(const Strategy& strategy) {
  strategy_ = &strategy;
  graph_.clear_tasks();
  if (teams_ == nullptr || groups_ != strategy.groups) {
    check_groups(machine_, strategy);
    groups_ = strategy.groups;
    graph_.teams.clear();
    graph_.lanes.clear();
    graph_.memories.clear();
    teams_ = std::make_unique<Teams>(machine_, strategy, graph_);
    group_ids_.clear();
    for (const auto& group : strategy.groups) group_ids_.push_back(tables_.intern(group));
  }
  std::vector<int32_t> ids;
  for (const Sharding& sharding : strategy.shardings) ids.push_back(tables_.intern(sharding));
  sharding_ids_.clear();
  for (int32_t index : strategy.ops) sharding_ids_.push_back(ids[static_cast<size_t>(index)]);
  if (stages_ != strategy.stages) {
    stages_ = strategy.stages;
    stage_of_ = stages_of_training(training_, strategy);
    backward_ops_.assign(strategy.stages.size(), {});
    for (size_t i = training_.forward_ops; i < training_.forward_ops + training_.backward_ops; ++i)
      backward_ops_[static_cast<size_t>(stage_of_[i])].push_back(OpId(i));
  }
  keeps_all_ = std::ranges::all_of(
      strategy.saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
  recompute_.before.clear();
  if (std::ranges::find(strategy.saved, MemoryAction::Recompute) != strategy.saved.end())
    recompute_ = plan_recompute(training_, strategy, stage_of_, facts_.roots);
  last_compute_.assign(graph_.teams.size(), {});
  const size_t rows = static_cast<size_t>(strategy.micro_batches) * training_.graph.tensors.size();
  for (auto& heads : heads_) heads.assign(rows, -1);
  values_.clear();
  stashes_.clear();
  buckets_.clear();
  ready_updates_.clear();
  units_.clear();
  plan_stashes();
  plan_weights();
}

// When the forward pass of a stage is done with a tensor that goes elsewhere.
void Emitter::plan_stashes() {
  stash_after_.resize(training_.forward_ops);
  for (auto& list : stash_after_) list.clear();
  const auto leaves = [](MemoryAction action) {
    return action == MemoryAction::Offload || compressed_bits(action) > 0;
  };
  offloads_ = std::ranges::any_of(strategy_->saved, leaves);
  if (!offloads_) return;
  std::vector<std::map<int32_t, size_t>> last(training_.saved.size());  // by saved tensor, by stage
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    for (const auto* list : {&op.inputs, &op.outputs, &op.auxiliaries})
      for (TensorId id : *list) {
        const int32_t s = id.valid() ? facts_.saved_index[id.index()] : -1;
        if (s >= 0 && leaves(strategy_->saved[static_cast<size_t>(s)]))
          last[static_cast<size_t>(s)][stage_of_[i]] = i;
      }
  }
  for (size_t s = 0; s < last.size(); ++s)
    for (const auto& [stage, op] : last[s]) stash_after_[op].push_back(static_cast<int32_t>(s));
}

void Emitter::run(const Strategy& strategy) {
  prepare(strategy);
  int32_t runs = 0;
  std::vector<int32_t> run_of_group(strategy_->groups.size(), -1);
  std::vector<WorkItem> previous(strategy_->groups.size(), WorkItem{-1, -1, false});
  for (const WorkItem& item : global_order(*strategy_)) {
    const Stage& stage = strategy_->stages[static_cast<size_t>(item.stage)];
    const auto group = static_cast<size_t>(item.backward ? stage.backward_group : stage.group);
    // Packs keep streamed weights while they go on with the same stage.
    const bool goes_on =
        strategy_->schedule == ScheduleKind::Packs && previous[group].stage == item.stage;
    if (!goes_on) run_of_group[group] = runs++;
    previous[group] = item;
    run_ = run_of_group[group];
    run_item(item);
  }
  flush_all();
  finish_updates();
}

void Emitter::run_item(const WorkItem& item) {
  const Stage& stage = strategy_->stages[static_cast<size_t>(item.stage)];
  item_stage_ = item.stage;
  item_backward_ = item.backward;
  if (!item.backward) {
    for (size_t i = stage.first; i < stage.last; ++i) {
      forward(OpId(i), item.micro_batch, stage.group, kForward);
      if (!stash_after_[i].empty()) stash_after(OpId(i), item);
    }
    return;
  }
  const auto& ops = backward_ops_[static_cast<size_t>(item.stage)];
  const auto ahead = static_cast<size_t>(strategy_->prefetch);
  for (size_t k = 0; k < std::min(ahead, ops.size()); ++k)
    prefetch(ops[k], item.micro_batch, stage.backward_group);
  for (size_t k = 0; k < ops.size(); ++k) {
    if (k + ahead < ops.size()) prefetch(ops[k + ahead], item.micro_batch, stage.backward_group);
    const Op& op = training_.graph[ops[k]];
    for (OpId again : again_before(ops[k]))
      forward(again, item.micro_batch, stage.backward_group, kAgain);
    if (op.forward.valid())
      backward(ops[k], item.micro_batch, stage.backward_group);
    else if (!facts_.dropped[ops[k].index()])
      accumulate(ops[k], item.micro_batch, stage.backward_group);
  }
  for (const auto& [u, term] : facts_.shared_terms) {
    const OpId producer = training_.graph[term].producer;
    if (stage_of_[producer.index()] != item.stage) continue;
    const Value* there = first(kForward, term, item.micro_batch);
    ensure(there != nullptr, "a gradient is summed before it is made");
    add_term(u, *there, item.micro_batch);
  }
}

void Emitter::stash_after(OpId id, const WorkItem& item) {
  const int32_t group = strategy_->stages[static_cast<size_t>(item.stage)].group;
  for (int32_t s : stash_after_[id.index()]) {
    const SavedTensor& saved = training_.saved[static_cast<size_t>(s)];
    for (OpId consumer : saved.consumers) {
      const Op& op = training_.graph[consumer];
      if (stage_of_[consumer.index()] != item.stage || !op.forward.valid()) continue;
      const OpTemplate& made =
          tables_.op(op.forward, sharding_ids_[op.forward.index()], group_id(group));
      for (size_t k = 0; k < op.saved.size(); ++k) {
        OperandTemplate want;
        const TensorId tensor = saved_tensor(op, k, made, want);
        if (!tensor.valid() || facts_.saved_index[tensor.index()] != s) continue;
        if (!training_.graph[tensor].producer.valid()) continue;  // data stays
        if (const Value* there = find(kForward, tensor, item.micro_batch, want.layout, group))
          stash(tensor, item.micro_batch, *there, strategy_->saved[static_cast<size_t>(s)]);
      }
    }
  }
}

void Emitter::forward(OpId id, int32_t micro_batch, int32_t group, Phase phase) {
  const Op& op = training_.graph[id];
  const OpTemplate& made = tables_.op(id, sharding_ids_[id.index()], group_id(group));
  operands_.assign(op.inputs.size(), {});
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].valid())
      operands_[i] = value(phase, op.inputs[i], micro_batch, made.inputs()[i], group);
  if (made.work < 0) {
    Value view = operands_[0];
    view.layout = made.outputs()[0].layout;
    put(phase, op.outputs[0], micro_batch, view);
    return;
  }
  results_.clear();
  const auto result = [&](const std::vector<TensorId>& ids, const OperandTemplate* templates) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ids[i].valid()) continue;
      const bool saved = facts_.saved_index[ids[i].index()] >= 0;
      const BufferKind kind = saved ? BufferKind::Activation : BufferKind::Transient;
      const BufferId buffer =
          buffers(group, kind, ids[i], micro_batch, bytes(ids[i], templates[i].elements));
      results_.push_back(
          {ids[i], {.group = group, .layout = templates[i].layout, .buffer = buffer}, -1});
    }
  };
  result(op.outputs, made.outputs());
  result(op.auxiliaries, made.auxiliaries());

  const auto& list = teams(group).teams;
  TaskId first_task;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (!operands_[i].buffer.valid()) continue;
      compute_after(operands_[i], k);
      use(operands_[i], k, (made.writes >> i & 1) != 0);
    }
    for (const Result& r : results_) use(r.value, k, true);
    const TaskId task = add(phase == kForward ? TaskKind::Forward : TaskKind::Recompute, made.work,
                            id, {}, micro_batch);
    if (k == 0) first_task = task;
  }
  finish_results(id, made.coupling, first_task, group, micro_batch);
  for (const Result& r : results_) put(phase, r.tensor, micro_batch, r.value);
}

// Says when the results are there: after the tasks of the op, or after what its pieces exchange.
void Emitter::finish_results(OpId id, int32_t coupling, TaskId first_task, int32_t group,
                             int32_t micro_batch) {
  TaskId ready = first_task;
  const bool couples = coupling >= 0;
  if (couples) {
    const auto& list = teams(group).teams;
    for (TeamId team : list) on(teams_->lane(team, LaneKind::Communicate));
    for (size_t k = 0; k < list.size(); ++k) {
      graph_.predecessors.push_back(TaskId(first_task.index() + k));
      for (const Result& r : results_) use(r.value, k, true);
    }
    ready = add(TaskKind::Collective, coupling, id, {}, micro_batch);
  }
  for (Result& r : results_) {
    r.value.ready = ready;
    r.value.per_team = r.value.computed = !couples;
  }
}

TensorId Emitter::saved_tensor(const Op& backward, size_t saved, const OpTemplate& made,
                               OperandTemplate& want) const {
  const SavedRef& ref = backward.saved[saved];
  const auto index = static_cast<size_t>(ref.index);
  switch (ref.source) {
    case SavedRef::Source::Input: want = made.inputs()[index]; break;
    case SavedRef::Source::Output: want = made.outputs()[index]; break;
    case SavedRef::Source::Auxiliary: want = made.auxiliaries()[index]; break;
  }
  return backward.inputs[backward.inputs.size() - backward.saved.size() + saved];
}

void Emitter::backward(OpId id, int32_t micro_batch, int32_t group) {
  const Op& op = training_.graph[id];
  const OpTemplate& made =
      tables_.op(op.forward, sharding_ids_[op.forward.index()], group_id(group));
  const size_t gradients = op.inputs.size() - op.saved.size();
  operands_.clear();
  for (size_t i = 0; i < gradients; ++i)
    if (op.inputs[i].valid())
      operands_.push_back(
          value(kForward, op.inputs[i], micro_batch, made.output_gradients()[i], group));
  if (made.backward_work < 0) {
    if (!op.outputs.empty() && op.outputs[0].valid()) {
      Value view = operands_.at(0);
      view.layout = made.input_gradients()[0].layout;
      put(kForward, op.outputs[0], micro_batch, view);
      if (const int32_t update = facts_.term_of[op.outputs[0].index()]; update >= 0)
        add_term(update, view, micro_batch);
    }
    return;
  }
  for (size_t s = 0; s < op.saved.size(); ++s) {
    OperandTemplate want;
    const TensorId tensor = saved_tensor(op, s, made, want);
    if (tensor.valid()) operands_.push_back(value(kAgain, tensor, micro_batch, want, group));
  }
  results_.clear();
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const TensorId tensor = op.outputs[i];
    if (!tensor.valid()) continue;
    const OperandTemplate& gradient = made.input_gradients()[i];
    const int32_t update = facts_.term_of[tensor.index()];
    const BufferId buffer = update >= 0 ? sum_buffer(update, tensor, gradient.layout,
                                                     gradient.elements, group, micro_batch)
                                        : buffers(group, BufferKind::Transient, tensor, micro_batch,
                                                  bytes(tensor, gradient.elements));
    results_.push_back(
        {tensor, {.group = group, .layout = gradient.layout, .buffer = buffer}, update});
  }
  const auto& list = teams(group).teams;
  TaskId first_task;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (const Value& operand : operands_) {
      compute_after(operand, k);
      use(operand, k, false);
    }
    for (const Result& r : results_) use(r.value, k, true);
    const TaskId task = add(TaskKind::Backward, made.backward_work, id, {}, micro_batch);
    if (k == 0) first_task = task;
  }
  finish_results(id, made.backward_coupling, first_task, group, micro_batch);
  for (const Result& r : results_) put(kForward, r.tensor, micro_batch, r.value);
  for (const Result& r : results_)
    if (r.update >= 0) finish_term(r.update, r.value, micro_batch);
}

// Partial sums of the same layout are added as they are and reduced later, together.
void Emitter::accumulate(OpId id, int32_t micro_batch, int32_t group) {
  const Op& op = training_.graph[id];
  std::vector<Value> terms;
  for (TensorId tensor : op.inputs) {
    const Value* made = first(kForward, tensor, micro_batch);
    ensure(made != nullptr, "a gradient is summed before it is made");
    terms.push_back(*made);
  }
  const bool same =
      terms[0].group == group && terms[1].group == group && terms[0].layout == terms[1].layout;
  if (!same) {
    const Value& model = terms[0].group == group ? terms[0] : terms[1];
    const int32_t layout =
        model.group == group
            ? tables_.settled(model.layout)
            : tables_.intern(Layout{
                  {Digit{.parts = static_cast<int32_t>(tables_.group(group_id(group)).size())}}});
    for (size_t i = 0; i < terms.size(); ++i)
      terms[i] = value(kForward, op.inputs[i], micro_batch, {layout, 0}, group);
  }
  const TensorId tensor = op.outputs[0];
  const int64_t size = graph_[terms[0].buffer].bytes.value;
  const int32_t work = tables_.work(memory_work(Bytes(2 * size), Bytes(size)));
  Value sum = {.group = group, .layout = terms[0].layout};
  sum.buffer = buffers(group, BufferKind::Transient, tensor, micro_batch, size);
  const auto& list = teams(group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (const Value& term : terms) {
      compute_after(term, k);
      use(term, k, false);
    }
    use(sum, k, true);
    const TaskId task = add(TaskKind::Backward, work, id, {}, micro_batch);
    if (k == 0) sum.ready = task;
  }
  sum.per_team = sum.computed = true;
  put(kForward, tensor, micro_batch, sum);
}

}  // namespace windlass
