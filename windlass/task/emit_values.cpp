// Values: where they are, and how they come to be where they are wanted.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {

MemoryAction Emitter::action(TensorId tensor) const {
  const int32_t index = facts_.saved_index[tensor.index()];
  return index < 0 ? MemoryAction::Keep : strategy_->saved[static_cast<size_t>(index)];
}

void Emitter::sort_predecessors() {
  const auto begin = graph_.predecessors.begin() + graph_.predecessor_begin.back();
  std::sort(begin, graph_.predecessors.end());
  graph_.predecessors.erase(std::unique(begin, graph_.predecessors.end()),
                            graph_.predecessors.end());
}

TaskId Emitter::add(const Task& task) {
  if (graph_.predecessors.size() > graph_.predecessor_begin.back() + 1) sort_predecessors();
  const LaneId lane = graph_.task_lanes[graph_.lane_begin.back()];
  const TaskId id = graph_.finish(task);
  if (graph_[lane].kind == LaneKind::Compute) last_compute_[graph_[lane].team.index()] = id;
  return id;
}

// A task that comes later on the same lane follows anyway.
void Emitter::add_predecessor(TaskId task) {
  const LaneId* const begin = graph_.task_lanes.data() + graph_.lane_begin.back();
  const LaneId* const end = graph_.task_lanes.data() + graph_.task_lanes.size();
  for (LaneId lane : graph_.lanes_of(task))
    for (const LaneId* own = begin; own != end; ++own)
      if (*own == lane) return;
  graph_.predecessors.push_back(task);
}

BufferId Emitter::buffers(int32_t group, const Content& content, int64_t bytes, bool at_start,
                          bool at_end) {
  const BufferId first(graph_.buffers.size());
  const bool kept = keeps(content.kind, content.micro_batch);
  const std::vector<TeamId>& list = teams(group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    Buffer& buffer = graph_.buffers.emplace_back();
    buffer.memory = graph_[list[k]].memory;
    buffer.kind = content.kind;
    buffer.at_start = at_start || kept;
    buffer.at_end = at_end || kept;
    buffer.micro_batch = content.micro_batch;
    buffer.tensor = content.tensor;
    buffer.group = group_id(group);
    buffer.layout = content.layout;
    buffer.share = content.share;
    buffer.bytes = allocated(unequal_ ? own_bytes(bytes, content, group, k) : bytes);
  }
  return first;
}

// On the hosts of each team. `shared`: members of a team that hold the same part use one copy.
BufferId Emitter::host_buffers(int32_t group, const Content& content, int64_t bytes, bool shared,
                               bool persistent) {
  BufferId first_buffer;
  for (size_t k = 0; k < teams(group).teams.size(); ++k) {
    const TeamId team = teams(group).teams[k];
    const HostShare& host = teams_->host(team);
    const int64_t parts = shared ? tables_.parts_on_host(group_id(group), teams(group).members[k],
                                                         content.layout, content.share)
                                 : host.members;
    const BufferId id = graph_.add({.memory = host.memory,
                                    .team = team,
                                    .kind = content.kind,
                                    .at_start = persistent,
                                    .at_end = persistent,
                                    .micro_batch = content.micro_batch,
                                    .tensor = content.tensor,
                                    .group = group_id(group),
                                    .layout = content.layout,
                                    .share = content.share,
                                    .bytes = Bytes(own_bytes(bytes, content, group, k) * parts)});
    if (!first_buffer.valid()) first_buffer = id;
  }
  return first_buffer;
}

// Partial sums in these buffers have been combined.
void Emitter::combine(BufferId first, size_t count, int32_t layout) {
  if (combined_.size() < first.index() + count) combined_.resize(graph_.buffers.size(), -1);
  std::fill_n(combined_.begin() + first.value, count, layout);
}

int32_t Emitter::buffer_layout(const Value& value) const {
  const size_t buffer = value.buffer.index();
  if (buffer < combined_.size() && combined_[buffer] >= 0) return combined_[buffer];
  return graph_[value.buffer].layout;
}

// Data, constants and statistics are where they are wanted from the start.
const Emitter::Value& Emitter::data(TensorId tensor, int32_t micro_batch,
                                    const OperandTemplate& want, int32_t group) {
  if (const Value* there = find(kForward, tensor, micro_batch, want.layout, group)) return *there;
  const bool each_step = facts_.origin[tensor.index()] == TrainingFacts::Origin::Data;
  const BufferId buffer = buffers(group,
                                  {.kind = each_step ? BufferKind::Input : BufferKind::Weight,
                                   .tensor = tensor,
                                   .micro_batch = each_step || micro_batch > 0 ? micro_batch : -1,
                                   .layout = want.layout},
                                  bytes(tensor, want.elements), true, !each_step);
  return put(kForward, tensor, micro_batch,
             {.group = group, .layout = want.layout, .buffer = buffer});
}

const Emitter::Value& Emitter::value(Phase phase, TensorId tensor, int32_t micro_batch,
                                     const OperandTemplate& want, int32_t group) {
  switch (facts_.origin[tensor.index()]) {
    case TrainingFacts::Origin::Weight: return weight(tensor, want, group);
    case TrainingFacts::Origin::Data: return data(tensor, micro_batch, want, group);
    case TrainingFacts::Origin::Fixed: return data(tensor, batch_of_fixed(tensor), want, group);
    case TrainingFacts::Origin::Made: break;
  }
  if (phase == kForward || keeps_all_)
    if (const Value* there = find(kForward, tensor, micro_batch, want.layout, group)) return *there;
  if (phase == kAgain) return saved_value(tensor, micro_batch, want.layout, group);
  const Value* made = first(kForward, tensor, micro_batch);
  ensure(made != nullptr, "a value is read before it is made");
  return redistribute(kForward, tensor, micro_batch, *made, want.layout, group);
}

// What the backward pass reads of the forward pass: as it was, computed again, or brought back.
const Emitter::Value& Emitter::saved_value(TensorId tensor, int32_t micro_batch, int32_t layout,
                                           int32_t group) {
  if (const Value* there = find(kAgain, tensor, micro_batch, layout, group)) return *there;
  if (const Value* other = first(kAgain, tensor, micro_batch))
    return redistribute(kAgain, tensor, micro_batch, *other, layout, group);
  const MemoryAction how = action(tensor);
  const int32_t source_group =
      strategy_->stages[static_cast<size_t>(item_stage_)].group;  // of the forward pass
  const Value* there = find(kForward, tensor, micro_batch, layout, source_group);
  const Value* made = first(kForward, tensor, micro_batch);
  ensure(made != nullptr, "a saved value was never made");
  if (there == nullptr || how == MemoryAction::Regather) {
    there = made;
    for (int32_t i = heads_[kForward][row(tensor, micro_batch)]; i >= 0;
         i = values_[static_cast<size_t>(i)].next) {
      if (values_[static_cast<size_t>(i)].group != source_group) continue;
      there = &values_[static_cast<size_t>(i)];
      break;
    }
  }
  passing_ = *there;
  if (how == MemoryAction::Offload || compressed_bits(how) > 0)
    passing_ = restore(tensor, micro_batch, passing_, group);
  if (passing_.group == group && passing_.layout == layout) return passing_;
  return redistribute(kAgain, tensor, micro_batch, passing_, layout, group);
}

Emitter::Value Emitter::carry(TensorId tensor, int32_t micro_batch, const MoveTemplate& move,
                              int32_t movement, const Value& from, int32_t group) {
  Value next = from;
  next.group = move.crosses ? group : from.group;
  next.layout = move.layout;
  const std::vector<TeamId>& senders = teams(from.group).teams;
  const std::vector<TeamId>& receivers = teams(next.group).teams;
  if (move.crosses) {
    for (TeamId a : senders)
      for (TeamId b : receivers) on(teams_->send_lane(a, b));
  } else {
    for (TeamId a : senders) on(teams_->lane(a, LaneKind::Communicate));
  }
  if (move.in_place) {
    ensure(from.view < 0, "partial sums are combined in a view");
    if (offloads_) combine(from.buffer, senders.size(), move.layout);
  } else {
    next.view = -1;
    next.buffer = buffers(next.group,
                          {.kind = BufferKind::Communication,
                           .tensor = tensor,
                           .micro_batch = micro_batch,
                           .layout = move.layout},
                          bytes(tensor, move.elements));
  }
  for (size_t k = 0; k < senders.size(); ++k) {
    after(from, k);
    if (move.in_place)
      write(from.buffer, k, UseKind::From);
    else
      read(from, k, UseKind::From);
  }
  if (!move.in_place)
    for (size_t k = 0; k < receivers.size(); ++k) write(next.buffer, k, UseKind::To);
  next.ready = add({.kind = move.crosses ? TaskKind::Send : TaskKind::Collective,
                    .price = move.traffic,
                    .micro_batch = micro_batch,
                    .tensor = tensor,
                    .group = group_id(from.group),
                    .how = movement});
  next.per_team = next.computed = false;
  return next;
}

const Emitter::Value& Emitter::redistribute(Phase phase, TensorId tensor, int32_t micro_batch,
                                            const Value& origin, int32_t layout, int32_t group) {
  const Tensor& t = tables_.sized().graph[tensor];
  // Where pieces of a gradient overlap, each has a share of the sum; activations are all there.
  const bool gradient = t.role == TensorRole::Gradient || t.role == TensorRole::WeightGradient;
  Value now = origin;
  for (const MoveTemplate& move :
       tables_.moves(t.type, origin.layout, group_id(origin.group), layout, group_id(group))) {
    const Value next = carry(tensor, micro_batch, move,
                             gradient ? move.movement : move.plain_movement, now, group);
    if (move.in_place) {
      // The partial sum is no more: who holds it holds the whole now.
      for (int32_t i = heads_[phase][row(tensor, micro_batch)]; i >= 0;) {
        Value& value = values_[static_cast<size_t>(i)];
        i = value.next;
        if (value.buffer != now.buffer || value.layout != now.layout) continue;
        const int32_t link = value.next;
        value = next;
        value.next = link;
      }
    }
    now = next;
  }
  // What each member wants may be part of what it has.
  if (now.layout != layout) see(now, tensor, layout);
  now.group = group;
  return put(phase, tensor, micro_batch, now);
}

void Emitter::stash(TensorId tensor, int32_t micro_batch, const Value& value, MemoryAction action) {
  Stash& stash = stashes_[value.buffer.value];
  if (stash.out) return;
  stash.out = true;
  const auto& list = teams(value.group).teams;
  const auto size = [&](size_t k) { return graph_.buffers[value.buffer.index() + k].bytes.value; };
  const int bits = compressed_bits(action);
  // The whole buffer goes, whatever view of it the value is.
  Content content = {.kind = BufferKind::Stash,
                     .tensor = graph_[value.buffer].tensor,
                     .micro_batch = micro_batch,
                     .layout = buffer_layout(value)};
  stash.stored = {.group = value.group, .layout = value.layout};
  if (bits > 0) {
    stash.stored.buffer = buffers(value.group, content, 0);
    for (size_t k = 0; k < list.size(); ++k) {
      const int64_t elements = size(k) / facts_.element_size[tensor.index()];
      const int64_t small = compressed_bytes(elements, bits);
      graph_.buffers[stash.stored.buffer.index() + k].bytes = allocated(small);
      const int32_t work = tables_.work(compression_work(elements, Bytes(size(k)), Bytes(small)));
      on(teams_->lane(list[k], LaneKind::Compute));
      after(value, k);
      read(value.buffer, k, UseKind::From);
      write(stash.stored.buffer, k, UseKind::To);
      const TaskId task = add({.kind = TaskKind::Compress,
                               .price = work,
                               .micro_batch = micro_batch,
                               .tensor = tensor,
                               .group = group_id(value.group),
                               .how = bits});
      if (k == 0) stash.stored.ready = task;
    }
    stash.stored.per_team = stash.stored.computed = true;
    return;
  }
  stash.stored.buffer = host_buffers(value.group, content, 0, false, false);
  for (size_t k = 0; k < list.size(); ++k) {
    graph_.buffers[stash.stored.buffer.index() + k].bytes =
        Bytes(size(k) * teams_->host(list[k]).members);
    on(teams_->lane(list[k], LaneKind::SwapOut));
    after(value, k);
    // Readers of the forward pass come first, so that the copy frees the memory.
    after(last_compute_[list[k].index()]);
    read(value.buffer, k, UseKind::From);
    write(stash.stored.buffer, k, UseKind::To);
    const int32_t traffic = tables_.host_copies(
        group_id(value.group), teams(value.group).members[k], true, Bytes(size(k)));
    const TaskId task = add({.kind = TaskKind::SwapOut,
                             .price = traffic,
                             .micro_batch = micro_batch,
                             .tensor = tensor,
                             .group = group_id(value.group)});
    if (k == 0) stash.stored.ready = task;
  }
  stash.stored.per_team = true;
}

Emitter::Value Emitter::restore(TensorId tensor, int32_t micro_batch, const Value& value,
                                int32_t group) {
  const auto found = stashes_.find(value.buffer.value);
  if (found == stashes_.end()) return value;
  Stash& stash = found->second;
  if (stash.back && stash.restored.group == group) {
    Value again = stash.restored;
    again.layout = value.layout;
    again.view = value.view;
    return again;
  }
  const auto& list = teams(group).teams;
  const Buffer stored = graph_[stash.stored.buffer];
  // Groups that differ have teams of the same sizes.
  const auto size = [&](size_t k) {
    return graph_.buffers[value.buffer.index() + (unequal_ ? k : 0)].bytes;
  };
  const bool compressed = graph_[stored.memory].team.valid();
  stash.back = true;
  stash.restored = {
      .group = compressed ? value.group : group, .layout = value.layout, .view = value.view};
  stash.restored.buffer = buffers(stash.restored.group,
                                  {.kind = BufferKind::Activation,
                                   .tensor = stored.tensor,
                                   .micro_batch = micro_batch,
                                   .layout = stored.layout},
                                  0);
  for (size_t k = 0; k < list.size(); ++k) {
    graph_.buffers[stash.restored.buffer.index() + k].bytes = size(k);
    const LaneKind lane = compressed ? LaneKind::Compute : LaneKind::SwapIn;
    on(teams_->lane(list[k], lane));
    after(stash.stored, k);
    after(last_compute_[list[k].index()]);  // what triggers the copy
    read(stash.stored.buffer, k, UseKind::From);
    write(stash.restored.buffer, k, UseKind::To);
    const Bytes kept = graph_.buffers[stash.stored.buffer.index() + (unequal_ ? k : 0)].bytes;
    const int32_t price =
        compressed ? tables_.work(decompression_work(
                         size(k).value / facts_.element_size[tensor.index()], kept, size(k)))
                   : tables_.host_copies(group_id(group), teams(group).members[k], false, size(k));
    const TaskId task = add({.kind = compressed ? TaskKind::Decompress : TaskKind::SwapIn,
                             .price = price,
                             .micro_batch = micro_batch,
                             .tensor = tensor,
                             .group = group_id(stash.restored.group),
                             .how = compressed ? compressed_bits(action(tensor)) : -1});
    if (k == 0) stash.restored.ready = task;
  }
  stash.restored.per_team = true;
  stash.restored.computed = compressed;
  return stash.restored;
}

// Starts the copies of what a backward op, or what is computed again for it, will read.
void Emitter::prefetch(const BackwardOp& op, int32_t micro_batch, int32_t group) {
  if (!offloads_) return;
  const auto fetch = [&](TensorId tensor, int32_t layout) {
    if (action(tensor) != MemoryAction::Offload) return;
    const int32_t source = strategy_->stages[static_cast<size_t>(item_stage_)].group;
    const Value* there = find(kForward, tensor, micro_batch, layout, source);
    if (there == nullptr) there = first(kForward, tensor, micro_batch);
    if (there != nullptr) restore(tensor, micro_batch, *there, group);
  };
  for (OpId again : again_before(op.op)) {
    for (const ReadTemplate& read : made_of(again, group).reads())
      fetch(tables_.tensors(again)[read.place], read.want.layout);
  }
  if (!op.forward.valid()) return;
  for (const ReadTemplate& read : made_of(op.forward, group).saved_reads())
    fetch(tables_.tensors(op.forward)[read.place], read.want.layout);
}

}  // namespace windlass
