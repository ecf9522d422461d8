// Ops: one task for each team of the group, and what the pieces exchange.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {

Emitter::Emitter(const TrainingGraph& training, const TrainingFacts& facts, const Machine& machine,
                 Tables& tables, TaskGraph& graph)
    : training_(training), machine_(machine), facts_(facts), tables_(tables), graph_(graph) {}

void Emitter::prepare(const Strategy& strategy) {
  strategy_ = &strategy;
  tables_.turn_to(-1);
  graph_.clear_tasks();
  const bool on_hosts = uses_hosts(strategy);
  std::vector<std::vector<int32_t>> kinds = size_kinds(strategy);
  // Searches change the limits of the machine between two strategies.
  std::vector<Bytes> usable;
  for (const auto& group : strategy.groups)
    for (const DeviceId device : group)
      if (device.index() < machine_.devices.size())
        usable.push_back(usable_memory(machine_[device], strategy));
  if (teams_ == nullptr || groups_ != strategy.groups || in_turn_ != strategy.in_turn ||
      on_hosts_ != on_hosts || kinds_ != kinds || usable_ != usable) {
    check_groups(machine_, strategy);
    groups_ = strategy.groups;
    in_turn_ = strategy.in_turn;
    on_hosts_ = on_hosts;
    kinds_ = std::move(kinds);
    usable_ = std::move(usable);
    unequal_ = std::ranges::any_of(kinds_, [](const auto& list) { return !list.empty(); });
    graph_.teams.clear();
    graph_.lanes.clear();
    graph_.memories.clear();
    teams_ = std::make_unique<Teams>(machine_, strategy, kinds_, graph_);
    group_ids_.clear();
    for (const auto& group : strategy.groups) group_ids_.push_back(tables_.intern(group));
  }
  // Searches ask for one strategy after the other that share their list of shardings.
  for (size_t i = 0; i < strategy.shardings.size(); ++i) {
    if (i == shardings_.size()) {
      shardings_.push_back(strategy.shardings[i]);
      listed_ids_.push_back(tables_.intern(shardings_[i]));
    } else if (shardings_[i] != strategy.shardings[i]) {
      shardings_[i] = strategy.shardings[i];
      listed_ids_[i] = tables_.intern(shardings_[i]);
    }
  }
  sharding_ids_.clear();
  for (int32_t index : strategy.ops)
    sharding_ids_.push_back(listed_ids_[static_cast<size_t>(index)]);
  if (stages_ != strategy.stages) {
    stages_ = strategy.stages;
    stage_of_ = stages_of_training(training_, strategy);
    backward_ops_.assign(strategy.stages.size(), {});
    for (size_t i = training_.forward_ops; i < training_.forward_ops + training_.backward_ops; ++i)
      backward_ops_[static_cast<size_t>(stage_of_[i])].push_back(
          {OpId(i), training_.graph.ops[i].forward});
  }
  keeps_gradients_ = training_.options.keeps_gradients &&
                     std::ranges::none_of(strategy.weights, &Residency::host_update);
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
  combined_.clear();
  bucket_count_ = 0;
  ready_updates_.clear();
  host_updates_.clear();
  squares_.clear();
  ready_sums_.clear();
  units_.clear();
  plan_stashes();
  plan_weights();
}

void Emitter::run(const Strategy& strategy) {
  prepare(strategy);
  run_ = 0;
  for (const WorkItem& item : global_order(*strategy_)) {
    run_item(item);
    ++run_;
  }
  tables_.turn_to(-1);
  flush_all();
  finish_updates();
}

void Emitter::run_item(const WorkItem& item) {
  const Stage& stage = strategy_->stages[static_cast<size_t>(item.stage)];
  item_stage_ = item.stage;
  item_backward_ = item.backward;
  tables_.turn_to(item.micro_batch);
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
    prefetch(ops[k], item.micro_batch, stage.group);
  for (size_t k = 0; k < ops.size(); ++k) {
    if (k + ahead < ops.size()) prefetch(ops[k + ahead], item.micro_batch, stage.group);
    const BackwardOp& op = ops[k];
    for (OpId again : again_before(op.op)) forward(again, item.micro_batch, stage.group, kAgain);
    if (op.forward.valid())
      backward(op, item.micro_batch, stage.group);
    else if (!facts_.dropped[op.op.index()])
      accumulate(op.op, item.micro_batch, stage.group);
  }
  for (const auto& [u, term] : facts_.shared_terms) {
    const OpId producer = training_.graph[term].producer;
    if (stage_of_[producer.index()] != item.stage) continue;
    const Value* there = first(kForward, term, item.micro_batch);
    ensure(there != nullptr, "a gradient is summed before it is made");
    add_term(u, *there, item.micro_batch);
  }
}

void Emitter::begin_op() {
  op_uses_.clear();
  op_awaits_.clear();
}

void Emitter::read(Phase phase, std::span<const ReadTemplate> reads, const TensorId* tensors,
                   int32_t micro_batch, int32_t group) {
  const bool as_it_was = phase == kForward || keeps_all_;
  for (const ReadTemplate& read : reads) {
    const TensorId tensor = tensors[read.place];
    // Mostly it is there; value() would find it too.
    const Value* found =
        as_it_was ? find(kForward, tensor, micro_batch, read.want.layout, group) : nullptr;
    const Value& there =
        found != nullptr ? *found : value(phase, tensor, micro_batch, read.want, group);
    op_uses_.push_back({.buffer = there.buffer,
                        .write = read.write,
                        .kind = UseKind::Input,
                        .index = static_cast<uint32_t>(read.index),
                        .view = there.view});
    // What was computed on the lane of the task that reads it is there.
    if (!there.computed && there.ready.valid())
      op_awaits_.push_back({{there.ready, there.per_team}, read.write});
  }
  op_reads_ = op_uses_.size();
}

void Emitter::make(const ResultTemplate& result, BufferId buffer, bool adds) {
  op_uses_.push_back({.buffer = buffer,
                      .write = true,
                      .adds = adds,
                      .kind = result.kind,
                      .index = static_cast<uint32_t>(result.index)});
}

void Emitter::forward(OpId id, int32_t micro_batch, int32_t group, Phase phase) {
  const OpTemplate& made = made_of(id, group);
  const TensorId* const tensors = tables_.tensors(id);
  if (made.work < 0) {
    Value view;
    for (size_t i = 0; i < made.reads().size(); ++i) {
      const ReadTemplate& read = made.reads()[i];
      const Value& there = value(phase, tensors[read.place], micro_batch, read.want, group);
      if (i == 0) view = there;
    }
    const ResultTemplate& seen = made.results()[0];
    see(view, tensors[seen.place], seen.buffer.layout);
    put(phase, tensors[seen.place], micro_batch, view);
    return;
  }
  begin_op();
  read(phase, made.reads(), tensors, micro_batch, group);
  for (const ResultTemplate& result : made.results())
    make(result, buffers(group, micro_batch, tensors[result.place], result.buffer));
  const TaskId done = run_op({.kind = phase == kForward ? TaskKind::Forward : TaskKind::Recompute,
                              .price = made.work,
                              .micro_batch = micro_batch,
                              .op = id,
                              .group = group_id(group),
                              .how = sharding_ids_[id.index()]},
                             made, group);
  put_results(phase, made.results(), tensors, done, micro_batch, group);
}

void Emitter::put_results(Phase phase, std::span<const ResultTemplate> results,
                          const TensorId* tensors, TaskId done, int32_t micro_batch,
                          int32_t group) {
  for (size_t i = 0; i < results.size(); ++i) {
    Value& value = put(phase, tensors[results[i].place], micro_batch);
    value.group = group;
    value.layout = results[i].buffer.layout;
    value.buffer = op_uses_[op_reads_ + i].buffer;
    value.ready = done;
    value.per_team = value.computed = true;
  }
}

// Statistics of the pieces, and then of all of them. What the op overwrites waits for its end.
Emitter::Value Emitter::exchange_statistics(const Task& model, const OpTemplate& made,
                                            int32_t group) {
  const bool back = model.kind == TaskKind::Backward;
  const OpId forward = back ? training_.graph[model.op].forward : model.op;
  const ExchangeTemplate& exchange = back ? made.backward_exchange : made.exchange;
  const auto& list = teams(group).teams;
  Value statistics = {.group = group};
  statistics.buffer =
      buffers(group, {BufferKind::Communication, {}, model.micro_batch}, exchange.bytes.value);
  TaskId first;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (const Awaited& awaited : op_awaits_)
      if (!awaited.to_end) after(awaited.done, k);
    for (size_t i = 0; i < op_reads_; ++i)
      if (!op_uses_[i].write) use(op_uses_[i], k);
    write(statistics.buffer, k, UseKind::Statistics);
    Task begin = model;
    begin.begins = true;
    const OpTemplate& own = made_of(forward, group, k, made);
    const ExchangeTemplate& here = back ? own.backward_exchange : own.exchange;
    begin.price = here.begin;
    graph_.buffers[statistics.buffer.index() + k].bytes = allocated(here.bytes.value);
    const TaskId task = add(begin);
    if (k == 0) first = task;
  }
  for (TeamId team : list) on(teams_->lane(team, LaneKind::Communicate));
  for (size_t k = 0; k < list.size(); ++k) {
    graph_.predecessors.push_back(TaskId(first.index() + k));
    write(statistics.buffer, k, UseKind::From);
  }
  statistics.ready = add({.kind = TaskKind::Collective,
                          .price = exchange.traffic,
                          .micro_batch = model.micro_batch,
                          .op = model.op,
                          .group = model.group,
                          .how = exchange.movement});
  return statistics;
}

TaskId Emitter::run_op(const Task& model, const OpTemplate& made, int32_t group) {
  const bool back = model.kind == TaskKind::Backward;
  const bool exchanges = (back ? made.backward_exchange : made.exchange).needed();
  Value statistics;
  if (exchanges) statistics = exchange_statistics(model, made, group);
  const auto& list = teams(group).teams;
  const TaskId first(graph_.size());
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (const Awaited& awaited : op_awaits_) after(awaited.done, k);
    if (exchanges) {
      use_all(0, op_reads_, k);
      after(statistics, k);
      read(statistics, k, UseKind::Statistics);
      use_all(op_reads_, op_uses_.size(), k);
    } else {
      use_all(0, op_uses_.size(), k);
    }
    add(model);
    if (unequal_ && k > 0) {
      const OpId forward = back ? training_.graph[model.op].forward : model.op;
      const OpTemplate& own = made_of(forward, group, k, made);
      graph_.tasks.back().price = back ? own.backward_work : own.work;
    }
  }
  return first;
}

void Emitter::backward_view(const BackwardOp& op, const OpTemplate& made, int32_t micro_batch,
                            int32_t group) {
  const TensorId* const tensors = tables_.tensors(op.forward);
  Value view;
  for (size_t i = 0; i < made.gradient_reads().size(); ++i) {
    const ReadTemplate& read = made.gradient_reads()[i];
    const Value& there = value(kForward, tensors[read.place], micro_batch, read.want, group);
    if (i == 0) view = there;
  }
  const std::vector<TensorId>& outputs = training_.graph[op.op].outputs;
  if (outputs.empty() || !outputs[0].valid()) return;
  ensure(view.buffer.valid(), "a view has no gradient to pass on");
  see(view, outputs[0], made.input_gradients()[0].layout);
  put(kForward, outputs[0], micro_batch, view);
  if (const int32_t update = facts_.term_of[outputs[0].index()]; update >= 0)
    add_term(update, view, micro_batch);
}

void Emitter::backward(const BackwardOp& op, int32_t micro_batch, int32_t group) {
  const OpTemplate& made = made_of(op.forward, group);
  if (made.backward_work < 0) return backward_view(op, made, micro_batch, group);
  const TensorId* const tensors = tables_.tensors(op.forward);
  begin_op();
  read(kForward, made.gradient_reads(), tensors, micro_batch, group);
  read(kAgain, made.saved_reads(), tensors, micro_batch, group);
  op_sums_.clear();
  for (const ResultTemplate& result : made.backward_results()) {
    const TensorId tensor = tensors[result.place];
    if (!result.term) {
      make(result, buffers(group, micro_batch, tensor, result.buffer));
      continue;
    }
    const int32_t update = facts_.term_of[tensor.index()];
    op_sums_.push_back(sum_for(update, result, group, micro_batch));
    const Sum& sum = sum_of({update, op_sums_.back()});
    make(result, sum.value.buffer, sum.begun);
  }
  const TaskId done = run_op({.kind = TaskKind::Backward,
                              .price = made.backward_work,
                              .micro_batch = micro_batch,
                              .op = op.op,
                              .group = group_id(group),
                              .how = sharding_ids_[op.forward.index()]},
                             made, group);
  put_results(kForward, made.backward_results(), tensors, done, micro_batch, group);
  size_t term = 0;
  for (const ResultTemplate& result : made.backward_results())
    if (result.term)
      finish_term(facts_.term_of[tensors[result.place].index()], op_sums_[term++], micro_batch,
                  done);
}

// Partial sums of the same layout are added as they are and reduced later, together.
void Emitter::accumulate(OpId id, int32_t micro_batch, int32_t group) {
  const Op& op = training_.graph[id];
  std::vector<Value>& terms = terms_;
  terms.clear();
  const auto elements = [&](TensorId tensor) {
    return element_count(tables_.sized().graph[tensor].type.shape);
  };
  const auto copies = [&] {
    const auto members = static_cast<int32_t>(tables_.group(group_id(group)).size());
    return tables_.intern(Layout{{Digit{.parts = members}}});
  };
  for (TensorId tensor : op.inputs) {
    if (facts_.origin[tensor.index()] != TrainingFacts::Origin::Made) {
      // The gradient of the loss itself, where terms of the loss are read again.
      terms.push_back(value(kForward, tensor, micro_batch, {copies(), elements(tensor)}, group));
      continue;
    }
    const Value* made = first(kForward, tensor, micro_batch);
    ensure(made != nullptr, "a gradient is summed before it is made");
    terms.push_back(*made);
  }
  const bool same =
      terms[0].group == group && terms[1].group == group && terms[0].layout == terms[1].layout;
  if (!same) {
    const Value& model = terms[0].group == group ? terms[0] : terms[1];
    const int32_t layout =
        model.group == group ? tables_.sum_layout(op.outputs[0], model.layout) : copies();
    for (size_t i = 0; i < terms.size(); ++i)
      terms[i] =
          value(kForward, op.inputs[i], micro_batch, {layout, elements(op.inputs[i])}, group);
  }
  const TensorId tensor = op.outputs[0];
  Value sum = {.group = group, .layout = terms[0].layout};
  const int64_t size = tables_.allocated_bytes(tensor, sum.layout);
  const int32_t work = tables_.sum_work(size);
  sum.buffer =
      buffers(group, {.tensor = tensor, .micro_batch = micro_batch, .layout = sum.layout}, size);
  if (unequal_) fit_buffers(sum.buffer, group);
  const auto& list = teams(group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    for (size_t i = 0; i < terms.size(); ++i) {
      compute_after(terms[i], k);
      read(terms[i], k, UseKind::Term, i);
    }
    write(sum.buffer, k, UseKind::Sum);
    const auto own_work = [&] {
      return tables_.sum_work(graph_.buffers[sum.buffer.index() + k].bytes.value);
    };
    const TaskId task = add({.kind = TaskKind::Backward,
                             .price = unequal_ ? own_work() : work,
                             .micro_batch = micro_batch,
                             .op = id,
                             .group = group_id(group)});
    if (k == 0) sum.ready = task;
  }
  sum.per_team = sum.computed = true;
  put(kForward, tensor, micro_batch, sum);
}

}  // namespace windlass
