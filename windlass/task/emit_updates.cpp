// Updates: on the devices or on the host, whole or in shares, and who hears of the new weights.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {

void Emitter::finish_updates() {
  // Weights whose home was done before another group sent its part.
  for (size_t u = 0; u < weights_.size(); ++u) {
    WeightState& state = weights_[u];
    if (state.updated) continue;
    state.updated = true;
    const Residency& residency = strategy_->weights[u];
    const SumRef last{static_cast<int32_t>(u), state.last_sum};
    ready_sums_.push_back(last);
    update({sum_of(last).value.group, state.zero, residency.host, residency.host_update, 0,
            state.share},
           ready_sums_.size() - 1);
  }
  if (clips()) exchange_squares();
  for (const HostUpdate& waiting : host_updates_) {
    std::vector<TaskId> done;
    for (size_t k = 0; k < waiting.parts.size(); ++k) done.push_back(update_there(waiting, k));
    finish_on_host(waiting, done);
  }
  for (const ReadyUpdate& ready : ready_updates_) update_on_device(ready.key, sums_of(ready));
  refresh_copies();
}

// Of what has been added to ready_sums_: at once on the host, unless the norm is waited for; at the
// end of the step on devices.
void Emitter::update(const BucketKey& key, size_t first_sum) {
  const ReadyUpdate ready = {key, first_sum, ready_sums_.size()};
  if (key.host_update)
    update_on_host(ready);
  else
    ready_updates_.push_back(ready);
}

void Emitter::update_on_device(const BucketKey& key, std::span<const SumRef> sums) {
  const auto& list = teams(key.group).teams;
  const Op& first_op = update_op(sums[0].update);
  const DType gradient = training_.graph[first_op.inputs[1]].type.dtype;
  const int32_t shared = key.zero >= 1 ? key.share : 0;
  const int64_t parts = tables_.members(shared);
  int64_t weight_bytes = 0;
  std::vector<BufferId>& weights = update_weights_;
  std::vector<BufferId>& states = update_states_;   // parallel; none if there is no state
  std::vector<BufferId> host_weights, host_states;  // streamed: at rest
  weights.clear();
  states.clear();
  for (const SumRef& ref : sums) {
    WeightState& state = weight_of(ref);
    const TrainingFacts::Update& facts = update_of(ref.update);
    const auto part = [&](BufferKind kind) {
      return Content{.kind = kind, .tensor = facts.weight, .layout = state.layout, .share = shared};
    };
    const int64_t share = largest_part(state.elements, parts);
    if (state.unit >= 0 && !state.rest.valid()) state.rest = rest_buffers(ref.update);
    weight_bytes += state.elements * facts.weight_size;
    const int64_t optimizer = share * facts.state_size;
    if (key.host) {
      const int64_t size = share * facts.weight_size;
      weights.push_back(buffers(key.group, part(BufferKind::Weight), size));
      host_weights.push_back(state.rest);
      if (optimizer > 0) {
        Content whole = part(BufferKind::OptimizerState);
        whole.share = 0;
        host_states.push_back(
            host_buffers(key.group, whole, state.elements * facts.state_size, true, true));
      }
    } else {
      weights.push_back(key.zero == 3 ? state.rest : home_weight(ref.update).buffer);
    }
    states.push_back(optimizer > 0 ? buffers(key.group, part(BufferKind::OptimizerState), optimizer,
                                             !key.host, !key.host)
                                   : BufferId());
  }
  // Elements that a member of a team updates.
  const auto own_share = [&](const SumRef& ref, size_t k) {
    const WeightState& state = weight_of(ref);
    const TensorId tensor = update_of(ref.update).weight;
    return largest_part(own(state.elements, tensor, state.layout, key.group, k), parts);
  };
  const auto swap = [&](TaskKind kind, size_t k, TaskId follow) {
    const bool in = kind == TaskKind::SwapIn;
    on(teams_->lane(list[k], in ? LaneKind::SwapIn : LaneKind::SwapOut));
    after(follow);
    size_t pair = 0, state = 0;
    const auto copy = [&](BufferId device, BufferId host) {
      read(in ? host : device, k, UseKind::From, pair);
      write(in ? device : host, k, UseKind::To, pair++);
    };
    int64_t moved = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const TrainingFacts::Update& facts = update_of(sums[i].update);
      moved += own_share(sums[i], k) * (facts.weight_size + facts.state_size);
      copy(weights[i], host_weights[i]);
      if (states[i].valid()) copy(states[i], host_states[state++]);
    }
    return add({.kind = kind,
                .price = tables_.host_copies(group_id(key.group), teams(key.group).members[k], !in,
                                             Bytes(moved)),
                .tensor = first_op.inputs[0],
                .group = group_id(key.group)});
  };
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  std::vector<TaskId> done;
  for (size_t k = 0; k < list.size(); ++k) {
    double elements = 0;
    for (const SumRef& ref : sums) elements += static_cast<double>(own_share(ref, k));
    const int32_t work =
        tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, elements,
                                 training_.graph[first_op.inputs[0]].type.dtype, gradient, master));
    TaskId arrived;
    if (key.host) arrived = swap(TaskKind::SwapIn, k, last_compute_[list[k].index()]);
    on(teams_->lane(list[k], LaneKind::Compute));
    after(arrived);
    for (size_t i = 0; i < sums.size(); ++i) {
      const WeightState& state = weight_of(sums[i]);
      const Value& sum = sum_of(sums[i]).value;
      compute_after(sum, k);
      after(state.fetched, k);
      const auto u = static_cast<size_t>(sums[i].update);
      read(sum, k, UseKind::Gradient, u);
      for (const Value& extra : state.extra) {
        compute_after(extra, k);
        read(extra, k, UseKind::Gradient, u);
      }
      write(weights[i], k, UseKind::Weight, u);
      if (states[i].valid()) write(states[i], k, UseKind::State, u);
    }
    if (clips()) {
      const std::vector<Value>& terms = norms_[static_cast<size_t>(key.group)].terms;
      for (size_t i = 0; i < terms.size(); ++i) {
        compute_after(terms[i], k);
        read(terms[i], k, UseKind::Squares, i);
      }
    }
    const TaskId task = add({.kind = TaskKind::Update,
                             .price = work,
                             .tensor = first_op.inputs[0],
                             .group = group_id(key.group),
                             .how = shared});
    done.push_back(task);
    if (key.host) swap(TaskKind::SwapOut, k, task);
    for (const SumRef& ref : sums) weight_of(ref).written.push_back(task);
  }
  // Weights that rest on the host went back there.
  if ((key.zero == 1 || key.zero == 2) && !key.host) gather_weights(key, sums, done, weight_bytes);
}

// After an update of shares: everybody gets the whole weights again.
void Emitter::gather_weights(const BucketKey& key, std::span<const SumRef> sums,
                             const std::vector<TaskId>& done, int64_t weight_bytes) {
  const auto& list = teams(key.group).teams;
  for (TeamId team : list) on(teams_->lane(team, LaneKind::Reduce));
  for (TaskId task : done) after(task);
  for (size_t k = 0; k < list.size(); ++k)
    for (size_t i = 0; i < sums.size(); ++i)
      write(home_weight(sums[i].update).buffer, k, UseKind::From, i);
  const int32_t traffic = tables_.collective(Collective::AllGather, group_id(key.group),
                                             tables_.digits(key.share), Bytes(weight_bytes));
  const TaskId task =
      add({.kind = TaskKind::Gather,
           .price = traffic,
           .tensor = update_of(sums[0].update).weight,
           .group = group_id(key.group),
           .how = tables_.exchange(Collective::AllGather, group_id(key.group), key.share)});
  for (const SumRef& ref : sums) weight_of(ref).written = {task};
}

// Gradients go to the host, the host updates, and resident weights come back.
void Emitter::update_on_host(const ReadyUpdate& ready) {
  const auto sums = sums_of(ready);
  for (const SumRef& ref : sums) {
    WeightState& state = weight_of(ref);
    if (state.unit >= 0 && !state.rest.valid()) state.rest = rest_buffers(ref.update);
    add_extras(ref);
  }
  HostUpdate update = {.ready = ready, .parts = {}};
  std::vector<TaskId> done;
  for (size_t k = 0; k < teams(ready.key.group).teams.size(); ++k) {
    update.parts.push_back(leave_for_host(ready.key, sums, k));
    if (!clips()) done.push_back(update_there(update, k));
  }
  if (clips())
    host_updates_.push_back(std::move(update));
  else
    finish_on_host(update, done);
}

// The buffers of a team on its hosts, and the copy of its gradients.
Emitter::HostPart Emitter::leave_for_host(const BucketKey& key, std::span<const SumRef> sums,
                                          size_t k) {
  const TeamId team = teams(key.group).teams[k];
  const Op& first_op = update_op(sums[0].update);
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  const int32_t shared = key.zero >= 1 ? key.share : 0;
  HostPart part;
  int64_t out = 0;
  for (const SumRef& ref : sums) {
    const WeightState& state = weight_of(ref);
    const TrainingFacts::Update& facts = update_of(ref.update);
    const int64_t share = largest_part(
        own(state.elements, facts.weight, state.layout, key.group, k), tables_.members(shared));
    out += share * facts.gradient_size;
    part.in += share * facts.weight_size;
    const int64_t distinct = tables_.parts_on_host(group_id(key.group), teams(key.group).members[k],
                                                   state.layout, shared);
    part.elements += static_cast<double>(share * distinct);
    const auto on_host = [&](BufferKind kind, int64_t size, bool persistent) {
      if (size == 0) return BufferId();
      return graph_.add({.memory = teams_->host(team).memory,
                         .team = team,
                         .kind = kind,
                         .at_start = persistent,
                         .at_end = persistent,
                         .tensor = facts.weight,
                         .group = group_id(key.group),
                         .layout = state.layout,
                         .share = shared,
                         .bytes = Bytes(size * distinct)});
    };
    part.gradients.push_back(
        on_host(BufferKind::WeightGradient, share * facts.gradient_size, false));
    part.states.push_back(on_host(BufferKind::OptimizerState, share * facts.state_size, true));
    // Of resident weights the host has a copy to update, or makes one from the master.
    part.results.push_back(
        key.host ? BufferId() : on_host(BufferKind::Weight, bytes(facts.weight, share), !master));
  }
  on(teams_->lane(team, LaneKind::SwapOut));
  for (size_t i = 0; i < sums.size(); ++i) {
    const Value& sum = sum_of(sums[i]).value;
    after(sum, k);
    read(sum, k, UseKind::From, i);
    write(part.gradients[i], 0, UseKind::To, i);
  }
  part.left = add({.kind = TaskKind::SwapOut,
                   .price = tables_.host_copies(group_id(key.group), teams(key.group).members[k],
                                                true, Bytes(out)),
                   .tensor = first_op.inputs[1],
                   .group = group_id(key.group)});
  if (clips()) part.left = add_squares_on_host(key, sums, k, part);
  return part;
}

// The update of a team on its hosts, and the way back of resident weights.
TaskId Emitter::update_there(const HostUpdate& update, size_t k) {
  const BucketKey& key = update.ready.key;
  const auto sums = sums_of(update.ready);
  const HostPart& part = update.parts[k];
  const TeamId team = teams(key.group).teams[k];
  const Op& first_op = update_op(sums[0].update);
  const TensorId first_tensor = first_op.inputs[0];
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  on(teams_->lane(team, LaneKind::Host));
  after(part.left);
  for (size_t i = 0; i < sums.size(); ++i) {
    const WeightState& state = weight_of(sums[i]);
    const auto u = static_cast<size_t>(sums[i].update);
    after(state.fetched, k);
    read(part.gradients[i], 0, UseKind::Gradient, u);
    if (part.states[i].valid()) write(part.states[i], 0, UseKind::State, u);
    if (key.host)
      write(state.rest, k, UseKind::Weight, u);
    else
      write(part.results[i], 0, UseKind::Weight, u);
  }
  if (clips()) {
    const Norm& norm = norms_[static_cast<size_t>(key.group)];
    after(norm.arrived[k]);
    for (size_t i = 0; i < norm.on_hosts.size(); ++i)
      read(norm.on_hosts[i], k, UseKind::Squares, i);
  }
  const int32_t work =
      tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, part.elements,
                               training_.graph[first_tensor].type.dtype,
                               training_.graph[first_op.inputs[1]].type.dtype, master));
  TaskId task = add({.kind = TaskKind::HostUpdate,
                     .price = work,
                     .tensor = first_tensor,
                     .group = group_id(key.group),
                     .how = key.zero >= 1 ? key.share : 0});
  if (!key.host) {
    on(teams_->lane(team, LaneKind::SwapIn));
    after(task);
    // The weights are overwritten: whoever reads them in this step comes first.
    after(last_compute_[team.index()]);
    for (size_t i = 0; i < sums.size(); ++i) {
      const WeightState& state = weight_of(sums[i]);
      after(state.fetched, k);
      read(part.results[i], 0, UseKind::From, i);
      write(key.zero == 3 ? state.rest : home_weight(sums[i].update).buffer, k, UseKind::To, i);
    }
    task = add({.kind = TaskKind::SwapIn,
                .price = tables_.host_copies(group_id(key.group), teams(key.group).members[k],
                                             false, Bytes(part.in)),
                .tensor = first_tensor,
                .group = group_id(key.group)});
  }
  for (const SumRef& ref : sums) weight_of(ref).written.push_back(task);
  return task;
}

void Emitter::finish_on_host(const HostUpdate& update, const std::vector<TaskId>& done) {
  const BucketKey& key = update.ready.key;
  if ((key.zero != 1 && key.zero != 2) || key.host) return;
  const auto sums = sums_of(update.ready);
  int64_t weight_bytes = 0;
  for (const SumRef& ref : sums)
    weight_bytes += weight_of(ref).elements * update_of(ref.update).weight_size;
  gather_weights(key, sums, done, weight_bytes);
}

// Weights that another group uses as well are sent there after the update.
void Emitter::refresh_copies() {
  for (size_t u = 0; u < weights_.size(); ++u) {
    const WeightState& state = weights_[u];
    if (state.unit >= 0) continue;
    const TensorId tensor = facts_.updates[u].weight;
    std::vector<Value> copies;
    for (int32_t i = heads_[kForward][row(tensor, 0)]; i >= 0;) {
      const Value& value = values_[static_cast<size_t>(i)];
      // Not brought there, nor part of another.
      const bool kept = !value.ready.valid() && value.view < 0;
      if (value.group != state.home && kept) copies.push_back(value);
      i = value.next;
    }
    if (copies.empty()) continue;
    const Value home = home_weight(static_cast<int32_t>(u));
    for (const Value& copy : copies) {
      const auto& moves = tables_.moves(training_.graph[tensor].type, home.layout,
                                        group_id(home.group), copy.layout, group_id(copy.group));
      for (TeamId team : teams(home.group).teams) after(last_compute_[team.index()]);
      for (TaskId task : state.written) after(task);
      Value now = home;
      for (size_t i = 0; i + 1 < moves.size(); ++i)
        now = carry(tensor, -1, moves[i], moves[i].plain_movement, now, copy.group);
      for (TeamId a : teams(home.group).teams)
        for (TeamId b : teams(copy.group).teams) on(teams_->send_lane(a, b));
      for (size_t k = 0; k < teams(home.group).teams.size(); ++k) {
        after(now, k);
        read(now, k, UseKind::From);
      }
      for (size_t k = 0; k < teams(copy.group).teams.size(); ++k) {
        after(last_compute_[teams(copy.group).teams[k].index()]);
        write(copy.buffer, k, UseKind::To);
      }
      add({.kind = TaskKind::Send,
           .price = moves.back().traffic,
           .tensor = tensor,
           .group = group_id(home.group),
           .how = moves.back().plain_movement});
    }
  }
}

}  // namespace windlass
