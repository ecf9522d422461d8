// Weights: where they live, how their gradients are summed and reduced, and how they are updated.

#include <algorithm>
#include <numeric>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {
namespace {

std::vector<MemberDigit> copy_digits(const Layout& layout) {
  std::vector<MemberDigit> digits;
  int64_t place = 1;
  for (size_t i = layout.digits.size(); i-- > 0;) {
    const Digit& digit = layout.digits[i];
    if (digit.kind != Digit::Kind::Axis) digits.push_back({place, digit.parts});
    place *= digit.parts;
  }
  return digits;
}

int64_t share_of(int64_t value, int64_t parts) { return (value + parts - 1) / parts; }

}  // namespace

int64_t Emitter::replicas(int32_t layout) const {
  int64_t count = 1;
  for (const Digit& digit : tables_.layout(layout).digits)
    if (digit.kind != Digit::Kind::Axis) count *= digit.parts;
  return count;
}

const Op& Emitter::update_op(int32_t update) const {
  return training_.graph
      .ops[training_.forward_ops + training_.backward_ops + static_cast<size_t>(update)];
}

// Where each weight is updated, which terms its gradient has, and which weights travel together.
void Emitter::plan_weights() {
  const size_t updates = facts_.terms.size();
  weights_.resize(updates);
  terms_left_.assign(updates * strategy_.groups.size(), 0);
  terms_each_.assign(updates * strategy_.groups.size(), 0);
  for (size_t u = 0; u < updates; ++u) {
    WeightState& state = weights_[u];
    state.sums.clear();
    state.extra.clear();
    state.streamed.clear();
    state.layout = state.unit = -1;
    state.terms_left = 0;
    state.updated = false;
    state.rest = state.shard = {};
    for (TensorId term : facts_.terms[u]) {
      const OpId producer = training_.graph[term].producer;
      const int32_t stage = producer.valid() ? stage_of_[producer.index()] : 0;
      const int32_t group = strategy_.stages[static_cast<size_t>(stage)].backward_group;
      const size_t at = at_group(static_cast<int32_t>(u), group);
      terms_left_[at] += static_cast<int32_t>(strategy_.micro_batches);
      state.terms_left += static_cast<int32_t>(strategy_.micro_batches);
      ++terms_each_[at];
    }
  }
  // Batches of streamed weights, in the order the forward pass wants them.
  std::vector<bool> seen(updates, false);
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (!op.inputs[k].valid()) continue;
      const int32_t u = facts_.update_index[op.inputs[k].index()];
      if (u < 0) continue;
      WeightState& state = weights_[static_cast<size_t>(u)];
      const int32_t stage = stage_of_[i];
      if (state.layout < 0) {
        // A weight is at home where it is used first.
        state.home = strategy_.stages[static_cast<size_t>(stage)].backward_group;
        const OpTemplate& made = tables_.op(OpId(i), sharding_ids_[i], group_id(state.home));
        state.layout = made.inputs[k].layout;
        state.elements = made.inputs[k].elements;
      }
      const Residency& residency = strategy_.weights[static_cast<size_t>(u)];
      if (seen[static_cast<size_t>(u)] || (residency.zero < 3 && !residency.host)) continue;
      seen[static_cast<size_t>(u)] = true;
      const bool fits = !units_.empty() && units_.back().stage == stage &&
                        units_.back().bytes < strategy_.bucket.value &&
                        units_.back().residency == residency;
      if (!fits) units_.push_back({.stage = stage, .residency = residency});
      units_.back().updates.push_back(u);
      units_.back().bytes += byte_size(training_.graph[op.inputs[k]].type).value;
      state.unit = static_cast<int32_t>(units_.size() - 1);
      state.streamed.assign(strategy_.groups.size(), {});
    }
  }
}

Emitter::Value Emitter::weight(TensorId tensor, int32_t layout, int32_t group) {
  const int32_t u = facts_.update_index[tensor.index()];
  if (u < 0) return data(tensor, 0, layout, group);
  if (weights_[static_cast<size_t>(u)].unit >= 0) return stream(u, tensor, layout, group);
  if (const Value* there = find(kForward, tensor, 0, layout, group)) return *there;
  for (int32_t i = heads_[kForward][row(tensor, 0)]; i >= 0;) {
    const Value other = values_[static_cast<size_t>(i)];
    if (other.group == group) return redistribute(kForward, tensor, 0, other, layout, group);
    i = other.next;
  }
  const int64_t elements =
      largest_elements(tables_.layout(layout), training_.graph[tensor].type.shape);
  const BufferId buffer =
      buffers(group, BufferKind::Weight, tensor, -1, bytes(tensor, elements), true, true);
  return put(kForward, tensor, 0, {.group = group, .layout = layout, .buffer = buffer});
}

Emitter::Value Emitter::stream(int32_t u, TensorId tensor, int32_t layout, int32_t group) {
  WeightState& state = weights_[static_cast<size_t>(u)];
  if (const Streamed& there = state.streamed[static_cast<size_t>(group)]; there.run != run_) {
    fetch(state.unit, group);
    const int32_t next = state.unit + (item_backward_ ? -1 : 1);
    const bool more =
        next >= 0 && static_cast<size_t>(next) < units_.size() &&
        units_[static_cast<size_t>(next)].stage == units_[static_cast<size_t>(state.unit)].stage;
    if (more) fetch(next, group);
  }
  Value value = state.streamed[static_cast<size_t>(group)].value;
  if (value.layout == layout) return value;
  // Another op wants it otherwise: a copy of its own, each time.
  Value other = value;
  for (const MoveTemplate& move : tables_.moves(training_.graph[tensor].type, value.layout,
                                                group_id(group), layout, group_id(group))) {
    const auto& list = teams(group).teams;
    for (TeamId team : list) lanes_.push_back(teams_->lane(team, LaneKind::Communicate));
    Value next = other;
    next.buffer =
        buffers(group, BufferKind::Communication, tensor, -1, bytes(tensor, move.elements));
    for (size_t k = 0; k < list.size(); ++k) {
      after(other, k);
      use(other, k, false);
      use(next, k, true);
    }
    next.ready = add(TaskKind::Collective, move.traffic, {}, tensor, -1);
    next.per_team = false;
    other = next;
  }
  other.layout = layout;
  return other;
}

// Brings the weights of a unit to the devices, for this run of the group.
void Emitter::fetch(int32_t index, int32_t group) {
  const Unit& unit = units_[static_cast<size_t>(index)];
  const auto& list = teams(group).teams;
  // Weights that lie alike are fetched by one task.
  std::map<std::vector<MemberDigit>, std::vector<int32_t>> alike;
  for (int32_t u : unit.updates) {
    WeightState& state = weights_[static_cast<size_t>(u)];
    if (state.streamed[static_cast<size_t>(group)].run == run_) continue;
    alike[unit.residency.host ? std::vector<MemberDigit>{}
                              : copy_digits(tables_.layout(state.layout))]
        .push_back(u);
  }
  for (const auto& [digits, updates] : alike) {
    int64_t total = 0;
    for (int32_t u : updates) {
      WeightState& state = weights_[static_cast<size_t>(u)];
      const TensorId tensor = update_op(u).inputs[0];
      const int64_t size = bytes(tensor, state.elements);
      total += size;
      Value value = {.group = group, .layout = state.layout};
      value.buffer = buffers(group, BufferKind::Weight, tensor, -1, size);
      state.streamed[static_cast<size_t>(group)] = {run_, value};
      if (!state.rest.valid()) state.rest = rest_buffers(u);
    }
    const auto finish = [&](TaskId task, bool per_team) {
      for (int32_t u : updates) {
        Value& value = weights_[static_cast<size_t>(u)].streamed[static_cast<size_t>(group)].value;
        value.ready = task;
        value.per_team = per_team;
      }
    };
    const TensorId first_tensor = update_op(updates[0]).inputs[0];
    if (!unit.residency.host) {
      for (TeamId team : list) lanes_.push_back(teams_->lane(team, LaneKind::Reduce));
      for (size_t k = 0; k < list.size(); ++k) {
        after(last_compute_[list[k].index()]);
        for (int32_t u : updates) {
          const WeightState& state = weights_[static_cast<size_t>(u)];
          use(BufferId(state.rest.index() + k), false);
          use(state.streamed[static_cast<size_t>(group)].value, k, true);
        }
      }
      finish(add(TaskKind::Gather,
                 tables_.collective(Collective::AllGather, group_id(group), digits, Bytes(total)),
                 {}, first_tensor, -1),
             false);
      continue;
    }
    TaskId first_task;
    for (size_t k = 0; k < list.size(); ++k) {
      lanes_.push_back(teams_->lane(list[k], LaneKind::SwapIn));
      after(last_compute_[list[k].index()]);
      for (int32_t u : updates) {
        const WeightState& state = weights_[static_cast<size_t>(u)];
        use(state.rest, false);
        use(state.streamed[static_cast<size_t>(group)].value, k, true);
      }
      const TaskId task =
          add(TaskKind::SwapIn,
              tables_.host_copies(group_id(group), teams(group).members[k], false, Bytes(total)),
              {}, first_tensor, -1);
      if (k == 0) first_task = task;
    }
    finish(first_task, true);
  }
}

// Where a streamed weight rests between its uses: a share on each replica, or one copy on the host.
BufferId Emitter::rest_buffers(int32_t u) {
  const WeightState& state = weights_[static_cast<size_t>(u)];
  const TensorId tensor = update_op(u).inputs[0];
  const int64_t size = bytes(tensor, state.elements);
  if (strategy_.weights[static_cast<size_t>(u)].host)
    return host_buffers(state.home, BufferKind::Weight, tensor, -1, size, true, state.layout, true);
  return buffers(state.home, BufferKind::Weight, tensor, -1, share_of(size, replicas(state.layout)),
                 true, true);
}

// The buffer that a term of a weight's gradient is added to.
BufferId Emitter::sum_buffer(int32_t u, TensorId tensor, int32_t layout, int64_t elements,
                             int32_t group, int32_t micro_batch) {
  const bool each = strategy_.weights[static_cast<size_t>(u)].zero >= 2;
  const int32_t batch = each ? micro_batch : -1;
  for (Sum& sum : weights_[static_cast<size_t>(u)].sums)
    if (sum.value.group == group && sum.value.layout == layout && sum.micro_batch == batch)
      return sum.value.buffer;
  Sum sum;
  sum.micro_batch = batch;
  sum.elements = elements;
  sum.value = {.group = group, .layout = layout};
  sum.value.buffer =
      buffers(group, BufferKind::WeightGradient, tensor, batch, bytes(tensor, elements));
  weights_[static_cast<size_t>(u)].sums.push_back(sum);
  return sum.value.buffer;
}

// Adds a gradient that others read too by a task of its own.
void Emitter::add_term(int32_t u, const Value& term, int32_t micro_batch) {
  const TensorId tensor = update_op(u).inputs[1];
  const int64_t elements =
      largest_elements(tables_.layout(term.layout), training_.graph[tensor].type.shape);
  Value sum = {.group = term.group, .layout = term.layout};
  sum.buffer = sum_buffer(u, tensor, term.layout, elements, term.group, micro_batch);
  const int64_t size = bytes(tensor, elements);
  const int32_t work = tables_.work(memory_work(Bytes(2 * size), Bytes(size)));
  const auto& list = teams(term.group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    lanes_.push_back(teams_->lane(list[k], LaneKind::Compute));
    after(term, k);
    use(term, k, false);
    use(sum, k, true);
    const TaskId task = add(TaskKind::Backward, work, {}, tensor, micro_batch);
    if (k == 0) sum.ready = task;
  }
  finish_term(u, term.layout, term.group, micro_batch, sum.ready, true);
}

void Emitter::finish_term(int32_t u, int32_t layout, int32_t group, int32_t micro_batch,
                          TaskId ready, bool per_team) {
  WeightState& state = weights_[static_cast<size_t>(u)];
  const bool each = strategy_.weights[static_cast<size_t>(u)].zero >= 2;
  for (Sum& sum : state.sums) {
    if (sum.value.group != group || sum.value.layout != layout ||
        sum.micro_batch != (each ? micro_batch : -1))
      continue;
    sum.value.ready = ready;
    sum.value.per_team = per_team;
    ++sum.terms;
  }
  --state.terms_left;
  const int32_t left = --terms_left_[at_group(u, group)];
  const bool batch_done = left % terms_each_[at_group(u, group)] == 0;
  if (each ? !batch_done : left > 0) return;
  // All sums of this group are final, or those of this micro-batch are.
  for (Sum& sum : state.sums) {
    if (sum.value.group != group || sum.queued || sum.terms == 0) continue;
    if (group != state.home) {
      sum.queued = true;
      const TensorId tensor = update_op(u).inputs[1];
      state.extra.push_back(redistribute(kForward, tensor, 0, sum.value, state.layout, state.home));
    } else if (each) {
      sum.queued = true;
      queue(u, sum);
    }
  }
  if (state.terms_left > 0) return;
  for (Sum& sum : state.sums) {
    if (sum.queued || sum.value.group != state.home) continue;
    sum.queued = true;
    queue(u, sum);
  }
  if (terms_each_[at_group(u, state.home)] > 0) return;
  // Nothing of the gradient is made at home: what came from elsewhere is all of it.
  Sum sum;
  sum.value = state.extra.front();
  sum.elements = state.elements;
  state.extra.erase(state.extra.begin());
  queue(u, sum);
}

void Emitter::queue(int32_t u, const Sum& sum) {
  const Residency& residency = strategy_.weights[static_cast<size_t>(u)];
  const BucketKey key{sum.value.group, residency.zero, residency.host, residency.host_update,
                      tables_.partial_digits(sum.value.layout)};
  Bucket& bucket = buckets_[key];
  bucket.entries.emplace_back(u, sum);
  bucket.bytes += bytes(update_op(u).inputs[1], sum.elements);
  if (bucket.bytes >= strategy_.bucket.value) {
    Bucket full = std::move(bucket);
    bucket = {};
    flush(key, full);
  }
}

void Emitter::flush_all() {
  for (auto& [key, bucket] : buckets_) {
    if (bucket.entries.empty()) continue;
    Bucket full = std::move(bucket);
    bucket = {};
    flush(key, full);
  }
}

// Reduces the gradients of a bucket over their replicas.
void Emitter::flush(const BucketKey& key, Bucket& bucket) {
  const auto& list = teams(key.group).teams;
  int64_t parts = 1;
  for (const MemberDigit& digit : key.digits) parts *= digit.parts;
  if (parts > 1) {
    const bool scatter = key.zero >= 1;
    for (TeamId team : list) lanes_.push_back(teams_->lane(team, LaneKind::Reduce));
    for (auto& [u, sum] : bucket.entries) {
      WeightState& state = weights_[static_cast<size_t>(u)];
      if (key.zero >= 2 && !state.shard.valid())
        state.shard = buffers(key.group, BufferKind::WeightGradient, update_op(u).inputs[1], -1,
                              share_of(bytes(update_op(u).inputs[1], sum.elements), parts));
      for (size_t k = 0; k < list.size(); ++k) {
        after(sum.value, k);
        use(sum.value, k, key.zero < 2);
        if (key.zero >= 2) use(BufferId(state.shard.index() + k), true);
      }
    }
    const TaskId task =
        add(TaskKind::Reduce,
            tables_.collective(scatter ? Collective::ReduceScatter : Collective::AllReduce,
                               group_id(key.group), key.digits, Bytes(bucket.bytes)),
            {}, update_op(bucket.entries[0].first).inputs[1], -1);
    for (auto& [u, sum] : bucket.entries) {
      sum.value.ready = task;
      sum.value.per_team = false;
      if (key.zero >= 2) sum.value.buffer = weights_[static_cast<size_t>(u)].shard;
    }
  }
  // A weight is updated, once, when all of its gradient is there.
  std::erase_if(bucket.entries, [&](auto& entry) {
    WeightState& state = weights_[static_cast<size_t>(entry.first)];
    state.last = entry.second;
    if (state.terms_left > 0 || state.updated) return true;
    state.updated = true;
    return false;
  });
  if (bucket.entries.empty()) return;
  if (key.host_update)
    update_on_host(key, bucket);
  else
    ready_updates_.emplace_back(key, std::move(bucket));
}

int64_t Emitter::state_bytes(int32_t u, int64_t elements) const {
  const Op& op = update_op(u);
  int64_t each = 0;
  for (size_t i = 2; i < op.inputs.size(); ++i)
    if (op.inputs[i].valid()) each += element_bytes(training_.graph[op.inputs[i]].type.dtype);
  return elements * each;
}

void Emitter::finish_updates() {
  // Weights whose home was done before another group sent its part.
  for (size_t u = 0; u < weights_.size(); ++u) {
    WeightState& state = weights_[u];
    if (state.updated) continue;
    state.updated = true;
    const Residency& residency = strategy_.weights[u];
    const BucketKey key{state.last.value.group, residency.zero, residency.host,
                        residency.host_update, copy_digits(tables_.layout(state.layout))};
    Bucket bucket;
    bucket.entries.emplace_back(static_cast<int32_t>(u), state.last);
    bucket.bytes = bytes(update_op(static_cast<int32_t>(u)).inputs[1], state.last.elements);
    if (key.host_update)
      update_on_host(key, bucket);
    else
      ready_updates_.emplace_back(key, std::move(bucket));
  }
  for (auto& [key, bucket] : ready_updates_) update_on_device(key, bucket);
  refresh_copies();
}

void Emitter::update_on_device(const BucketKey& key, const Bucket& bucket) {
  const auto& list = teams(key.group).teams;
  const Op& first_op = update_op(bucket.entries[0].first);
  const DType gradient = training_.graph[first_op.inputs[1]].type.dtype;
  double elements = 0;
  int64_t weight_bytes = 0, moved = 0;
  std::vector<std::pair<Value, Value>> operands;  // weight, state
  std::vector<BufferId> host_states;
  for (const auto& [u, sum] : bucket.entries) {
    const WeightState& state = weights_[static_cast<size_t>(u)];
    const TensorId tensor = update_op(u).inputs[0];
    const int64_t parts = key.zero >= 1 ? replicas(state.layout) : 1;
    const int64_t share = share_of(state.elements, parts);
    elements += static_cast<double>(share);
    weight_bytes += bytes(tensor, state.elements);
    Value weight_value, state_value;
    weight_value = state_value = {.group = key.group, .layout = state.layout};
    const int64_t optimizer = state_bytes(u, share);
    if (key.host) {
      weight_value.buffer =
          buffers(key.group, BufferKind::Weight, tensor, -1, bytes(tensor, share));
      host_states.push_back(host_buffers(key.group, BufferKind::OptimizerState, tensor, -1,
                                         state_bytes(u, state.elements), true, state.layout, true));
      moved += optimizer + bytes(tensor, share);
    } else if (key.zero == 3) {
      weight_value.buffer = state.rest;
    } else {
      weight_value = weight(tensor, state.layout, key.group);
    }
    if (optimizer > 0)
      state_value.buffer = buffers(key.group, BufferKind::OptimizerState, tensor, -1, optimizer,
                                   !key.host, !key.host);
    operands.emplace_back(weight_value, state_value);
  }
  const auto swap = [&](TaskKind kind, size_t k, TaskId follow) {
    lanes_.push_back(
        teams_->lane(list[k], kind == TaskKind::SwapIn ? LaneKind::SwapIn : LaneKind::SwapOut));
    after(follow);
    for (const auto& [weight_value, state_value] : operands) {
      use(weight_value, k, kind == TaskKind::SwapIn);
      if (state_value.buffer.valid()) use(state_value, k, kind == TaskKind::SwapIn);
    }
    for (BufferId host : host_states) use(BufferId(host.index() + k), kind == TaskKind::SwapOut);
    return add(kind,
               tables_.host_copies(group_id(key.group), teams(key.group).members[k],
                                   kind == TaskKind::SwapOut, Bytes(moved)),
               {}, first_op.inputs[0], -1);
  };
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  const int32_t work =
      tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, elements,
                               training_.graph[first_op.inputs[0]].type.dtype, gradient, master));
  Value done = {.group = key.group};
  done.per_team = true;
  for (size_t k = 0; k < list.size(); ++k) {
    TaskId arrived;
    if (key.host) arrived = swap(TaskKind::SwapIn, k, last_compute_[list[k].index()]);
    lanes_.push_back(teams_->lane(list[k], LaneKind::Compute));
    after(arrived);
    for (size_t i = 0; i < bucket.entries.size(); ++i) {
      const auto& [u, sum] = bucket.entries[i];
      after(sum.value, k);
      use(sum.value, k, false);
      for (const Value& extra : weights_[static_cast<size_t>(u)].extra) {
        after(extra, k);
        use(extra, k, false);
      }
      use(operands[i].first, k, true);
      if (operands[i].second.buffer.valid()) use(operands[i].second, k, true);
    }
    const TaskId task =
        add(TaskKind::Update, work, {}, update_op(bucket.entries[0].first).inputs[0], -1);
    // The tasks of a group's teams follow each other, unless copies lie between.
    if (k == 0) done.ready = task;
    done.per_team = !key.host;
    if (key.host) swap(TaskKind::SwapOut, k, task);
  }
  if (key.zero == 1 || key.zero == 2) gather_weights(key, bucket, done, weight_bytes);
}

// After an update of shares: everybody gets the whole weights again.
void Emitter::gather_weights(const BucketKey& key, const Bucket& bucket, const Value& done,
                             int64_t weight_bytes) {
  if (key.digits.empty()) return;
  const auto& list = teams(key.group).teams;
  for (TeamId team : list) lanes_.push_back(teams_->lane(team, LaneKind::Reduce));
  for (size_t k = 0; k < list.size(); ++k) {
    after(done, k);
    for (const auto& [u, sum] : bucket.entries) {
      const WeightState& state = weights_[static_cast<size_t>(u)];
      use(weight(update_op(u).inputs[0], state.layout, key.group), k, true);
    }
  }
  add(TaskKind::Gather,
      tables_.collective(Collective::AllGather, group_id(key.group), key.digits,
                         Bytes(weight_bytes)),
      {}, update_op(bucket.entries[0].first).inputs[0], -1);
}

// Gradients go to the host, the host updates, and resident weights come back.
void Emitter::update_on_host(const BucketKey& key, const Bucket& bucket) {
  const auto& list = teams(key.group).teams;
  const Op& first_op = update_op(bucket.entries[0].first);
  const TensorId first_tensor = first_op.inputs[0];
  const DType gradient = training_.graph[first_op.inputs[1]].type.dtype;
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  Value done = {.group = key.group};
  int64_t weight_bytes = 0;
  for (size_t k = 0; k < list.size(); ++k) {
    double elements = 0;
    int64_t out = 0, in = 0;
    std::vector<BufferId> gradients, states;
    const HostShare& host = teams_->hosts(list[k]).front();
    for (const auto& [u, sum] : bucket.entries) {
      const WeightState& state = weights_[static_cast<size_t>(u)];
      const TensorId tensor = update_op(u).inputs[0];
      const int64_t copies = replicas(state.layout);
      const int64_t parts = key.zero >= 1 ? copies : 1;
      const int64_t share = share_of(state.elements, parts);
      out += bytes(update_op(u).inputs[1], share);
      in += bytes(tensor, share);
      weight_bytes += bytes(tensor, state.elements);
      // Distinct parts on this host: replicas without sharding hold the same.
      const int64_t distinct =
          std::max<int64_t>(1, key.zero >= 1 ? host.members : host.members / copies);
      elements += static_cast<double>(share * distinct);
      const auto on_host = [&](BufferKind kind, int64_t size, bool persistent) {
        return graph_.add({.memory = host.memory,
                           .kind = kind,
                           .at_start = persistent,
                           .at_end = persistent,
                           .tensor = tensor,
                           .bytes = Bytes(size * distinct)});
      };
      gradients.push_back(
          on_host(BufferKind::WeightGradient, bytes(update_op(u).inputs[1], share), false));
      if (const int64_t size = state_bytes(u, share); size > 0)
        states.push_back(on_host(BufferKind::OptimizerState, size, true));
    }
    lanes_.push_back(teams_->lane(list[k], LaneKind::SwapOut));
    for (size_t i = 0; i < bucket.entries.size(); ++i) {
      const auto& [u, sum] = bucket.entries[i];
      after(sum.value, k);
      use(sum.value, k, false);
      for (const Value& extra : weights_[static_cast<size_t>(u)].extra) {
        after(extra, k);
        use(extra, k, false);
      }
      use(gradients[i], true);
    }
    const TaskId left =
        add(TaskKind::SwapOut,
            tables_.host_copies(group_id(key.group), teams(key.group).members[k], true, Bytes(out)),
            {}, first_op.inputs[1], -1);
    lanes_.push_back(teams_->lane(list[k], LaneKind::Host));
    after(left);
    for (BufferId buffer : gradients) use(buffer, false);
    for (BufferId buffer : states) use(buffer, true);
    if (key.host)
      for (const auto& [u, sum] : bucket.entries) {
        WeightState& state = weights_[static_cast<size_t>(u)];
        if (!state.rest.valid()) state.rest = rest_buffers(u);
        use(state.rest, true);
      }
    const int32_t work =
        tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, elements,
                                 training_.graph[first_tensor].type.dtype, gradient, master));
    TaskId task = add(TaskKind::HostUpdate, work, {}, first_tensor, -1);
    if (!key.host) {
      lanes_.push_back(teams_->lane(list[k], LaneKind::SwapIn));
      after(task);
      // The weights are overwritten: whoever reads them in this step comes first.
      after(last_compute_[list[k].index()]);
      for (const auto& [u, sum] : bucket.entries)
        use(weight(update_op(u).inputs[0], weights_[static_cast<size_t>(u)].layout, key.group), k,
            true);
      task = add(
          TaskKind::SwapIn,
          tables_.host_copies(group_id(key.group), teams(key.group).members[k], false, Bytes(in)),
          {}, first_tensor, -1);
    }
    if (k == 0) done.ready = task;
  }
  weight_bytes /= static_cast<int64_t>(list.size());
  if ((key.zero == 1 || key.zero == 2) && !key.host)
    gather_weights(key, bucket, done, weight_bytes);
}

// Weights that another group uses as well are sent there after the update.
void Emitter::refresh_copies() {
  for (size_t u = 0; u < weights_.size(); ++u) {
    const WeightState& state = weights_[u];
    if (state.unit >= 0) continue;
    const TensorId tensor = update_op(static_cast<int32_t>(u)).inputs[0];
    std::vector<Value> copies;
    for (int32_t i = heads_[kForward][row(tensor, 0)]; i >= 0;) {
      const Value& value = values_[static_cast<size_t>(i)];
      if (value.group != state.home && !value.ready.valid()) copies.push_back(value);
      i = value.next;
    }
    if (copies.empty()) continue;
    const Value home = weight(tensor, state.layout, state.home);
    for (const Value& copy : copies) {
      const auto& moves = tables_.moves(training_.graph[tensor].type, home.layout,
                                        group_id(home.group), copy.layout, group_id(copy.group));
      for (TeamId a : teams(home.group).teams)
        for (TeamId b : teams(copy.group).teams) lanes_.push_back(teams_->send_lane(a, b));
      for (size_t k = 0; k < teams(home.group).teams.size(); ++k) {
        after(last_compute_[teams(home.group).teams[k].index()]);
        use(home, k, false);
      }
      for (size_t k = 0; k < teams(copy.group).teams.size(); ++k) {
        after(last_compute_[teams(copy.group).teams[k].index()]);
        use(copy, k, true);
      }
      add(TaskKind::Send, moves.back().traffic, {}, tensor, -1);
    }
  }
}

}  // namespace windlass
