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
  for (const ReadyUpdate& ready : ready_updates_)
    update_on_device(ready.key, {ready_sums_.data() + ready.begin, ready_sums_.data() + ready.end});
  refresh_copies();
}

// Of what has been added to ready_sums_: at once on the host, at the end of the step on devices.
void Emitter::update(const BucketKey& key, size_t first_sum) {
  if (key.host_update)
    update_on_host(key, {ready_sums_.data() + first_sum, ready_sums_.data() + ready_sums_.size()});
  else
    ready_updates_.push_back({key, first_sum, ready_sums_.size()});
}

void Emitter::update_on_device(const BucketKey& key, std::span<const SumRef> sums) {
  const auto& list = teams(key.group).teams;
  const Op& first_op = update_op(sums[0].update);
  const DType gradient = training_.graph[first_op.inputs[1]].type.dtype;
  const int64_t parts = key.zero >= 1 ? tables_.members(key.share) : 1;
  double elements = 0;
  int64_t weight_bytes = 0, moved = 0;
  std::vector<BufferId>& weights = update_weights_;
  std::vector<BufferId>& states = update_states_;  // parallel; none if there is no state
  std::vector<BufferId> host_buffers_of;           // streamed: the weights at rest and their state
  weights.clear();
  states.clear();
  for (const SumRef& ref : sums) {
    WeightState& state = weight_of(ref);
    const TrainingFacts::Update& facts = update_of(ref.update);
    const int64_t share = parts == 1 ? state.elements : share_of(state.elements, parts);
    elements += static_cast<double>(share);
    if (state.unit >= 0 && !state.rest.valid()) state.rest = rest_buffers(ref.update);
    weight_bytes += state.elements * facts.weight_size;
    const int64_t optimizer = share * facts.state_size;
    if (key.host) {
      const int64_t size = share * facts.weight_size;
      weights.push_back(buffers(key.group, BufferKind::Weight, facts.weight, -1, size));
      host_buffers_of.push_back(state.rest);
      if (optimizer > 0)
        host_buffers_of.push_back(host_buffers(key.group, BufferKind::OptimizerState, facts.weight,
                                               -1, state.elements * facts.state_size, true,
                                               state.layout, true));
      moved += optimizer + size;
    } else {
      weights.push_back(key.zero == 3 ? state.rest : home_weight(ref.update).buffer);
    }
    states.push_back(optimizer > 0 ? buffers(key.group, BufferKind::OptimizerState, facts.weight,
                                             -1, optimizer, !key.host, !key.host)
                                   : BufferId());
  }
  const auto swap = [&](TaskKind kind, size_t k, TaskId follow) {
    on(teams_->lane(list[k], kind == TaskKind::SwapIn ? LaneKind::SwapIn : LaneKind::SwapOut));
    after(follow);
    for (size_t i = 0; i < sums.size(); ++i) {
      use(BufferId(weights[i].index() + k), kind == TaskKind::SwapIn);
      if (states[i].valid()) use(BufferId(states[i].index() + k), kind == TaskKind::SwapIn);
    }
    for (BufferId host : host_buffers_of)
      use(BufferId(host.index() + k), kind == TaskKind::SwapOut);
    return add(kind,
               tables_.host_copies(group_id(key.group), teams(key.group).members[k],
                                   kind == TaskKind::SwapOut, Bytes(moved)),
               {}, first_op.inputs[0], -1);
  };
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  const int32_t work =
      tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, elements,
                               training_.graph[first_op.inputs[0]].type.dtype, gradient, master));
  std::vector<TaskId> done;
  for (size_t k = 0; k < list.size(); ++k) {
    TaskId arrived;
    if (key.host) arrived = swap(TaskKind::SwapIn, k, last_compute_[list[k].index()]);
    on(teams_->lane(list[k], LaneKind::Compute));
    after(arrived);
    for (size_t i = 0; i < sums.size(); ++i) {
      const WeightState& state = weight_of(sums[i]);
      const Value& sum = sum_of(sums[i]).value;
      compute_after(sum, k);
      after(state.fetched);
      use(sum, k, false);
      for (const Value& extra : state.extra) {
        compute_after(extra, k);
        use(extra, k, false);
      }
      use(BufferId(weights[i].index() + k), true);
      if (states[i].valid()) use(BufferId(states[i].index() + k), true);
    }
    const TaskId task = add(TaskKind::Update, work, {}, first_op.inputs[0], -1);
    done.push_back(task);
    if (key.host) swap(TaskKind::SwapOut, k, task);
    for (const SumRef& ref : sums) weight_of(ref).written = task;
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
    for (const SumRef& ref : sums) use(home_weight(ref.update), k, true);
  const TaskId task = add(TaskKind::Gather,
                          tables_.collective(Collective::AllGather, group_id(key.group),
                                             tables_.digits(key.share), Bytes(weight_bytes)),
                          {}, update_of(sums[0].update).weight, -1);
  for (const SumRef& ref : sums) weight_of(ref).written = task;
}

// Gradients go to the host, the host updates, and resident weights come back.
void Emitter::update_on_host(const BucketKey& key, std::span<const SumRef> sums) {
  const auto& list = teams(key.group).teams;
  const Op& first_op = update_op(sums[0].update);
  const TensorId first_tensor = first_op.inputs[0];
  const DType gradient = training_.graph[first_op.inputs[1]].type.dtype;
  const bool master = first_op.inputs.size() > 2 && first_op.inputs[2].valid();
  std::vector<TaskId> done;
  int64_t weight_bytes = 0;
  for (const SumRef& ref : sums) {
    WeightState& state = weight_of(ref);
    if (state.unit >= 0 && !state.rest.valid()) state.rest = rest_buffers(ref.update);
  }
  for (size_t k = 0; k < list.size(); ++k) {
    double elements = 0;
    int64_t out = 0, in = 0;
    std::vector<BufferId> gradients, states, results;
    const HostShare& host = teams_->hosts(list[k]).front();
    for (const SumRef& ref : sums) {
      const WeightState& state = weight_of(ref);
      const TrainingFacts::Update& facts = update_of(ref.update);
      const int64_t parts = key.zero >= 1 ? tables_.members(key.share) : 1;
      const int64_t copies = replicas(state.layout) / parts;
      const int64_t share = share_of(state.elements, parts);
      out += share * facts.gradient_size;
      in += share * facts.weight_size;
      weight_bytes += state.elements * facts.weight_size;
      // Distinct parts on this host: replicas that do not share out hold the same.
      const int64_t distinct = std::max<int64_t>(1, host.members / copies);
      elements += static_cast<double>(share * distinct);
      const auto on_host = [&](BufferKind kind, int64_t size, bool persistent) {
        return graph_.add({.memory = host.memory,
                           .kind = kind,
                           .at_start = persistent,
                           .at_end = persistent,
                           .tensor = facts.weight,
                           .bytes = Bytes(size * distinct)});
      };
      gradients.push_back(on_host(BufferKind::WeightGradient, share * facts.gradient_size, false));
      if (const int64_t size = share * facts.state_size; size > 0)
        states.push_back(on_host(BufferKind::OptimizerState, size, true));
      // Of resident weights the host has a copy to update, or makes one from the master.
      if (!key.host)
        results.push_back(on_host(BufferKind::Weight, bytes(facts.weight, share), !master));
    }
    on(teams_->lane(list[k], LaneKind::SwapOut));
    for (size_t i = 0; i < sums.size(); ++i) {
      const Value& sum = sum_of(sums[i]).value;
      after(sum, k);
      use(sum, k, false);
      for (const Value& extra : weight_of(sums[i]).extra) {
        after(extra, k);
        use(extra, k, false);
      }
      use(gradients[i], true);
    }
    const TaskId left =
        add(TaskKind::SwapOut,
            tables_.host_copies(group_id(key.group), teams(key.group).members[k], true, Bytes(out)),
            {}, first_op.inputs[1], -1);
    on(teams_->lane(list[k], LaneKind::Host));
    after(left);
    for (BufferId buffer : gradients) use(buffer, false);
    for (BufferId buffer : states) use(buffer, true);
    for (const SumRef& ref : sums) {
      const WeightState& state = weight_of(ref);
      after(state.fetched);
      if (key.host) use(BufferId(state.rest.index() + k), true);
    }
    for (BufferId buffer : results) use(buffer, true);
    const int32_t work =
        tables_.work(update_work(std::get<UpdateAttrs>(first_op.attrs).optimizer, elements,
                                 training_.graph[first_tensor].type.dtype, gradient, master));
    TaskId task = add(TaskKind::HostUpdate, work, {}, first_tensor, -1);
    if (!key.host) {
      on(teams_->lane(list[k], LaneKind::SwapIn));
      after(task);
      // The weights are overwritten: whoever reads them in this step comes first.
      after(last_compute_[list[k].index()]);
      for (BufferId buffer : results) use(buffer, false);
      for (const SumRef& ref : sums) {
        const WeightState& state = weight_of(ref);
        after(state.fetched);
        if (key.zero == 3)
          use(BufferId(state.rest.index() + k), true);
        else
          use(home_weight(ref.update), k, true);
      }
      task = add(
          TaskKind::SwapIn,
          tables_.host_copies(group_id(key.group), teams(key.group).members[k], false, Bytes(in)),
          {}, first_tensor, -1);
    }
    done.push_back(task);
    for (const SumRef& ref : sums) weight_of(ref).written = task;
  }
  weight_bytes /= static_cast<int64_t>(list.size());
  if ((key.zero == 1 || key.zero == 2) && !key.host) gather_weights(key, sums, done, weight_bytes);
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
      if (value.group != state.home && !value.ready.valid()) copies.push_back(value);
      i = value.next;
    }
    if (copies.empty()) continue;
    const Value home = home_weight(static_cast<int32_t>(u));
    for (const Value& copy : copies) {
      const auto& moves = tables_.moves(training_.graph[tensor].type, home.layout,
                                        group_id(home.group), copy.layout, group_id(copy.group));
      for (TeamId a : teams(home.group).teams)
        for (TeamId b : teams(copy.group).teams) on(teams_->send_lane(a, b));
      for (size_t k = 0; k < teams(home.group).teams.size(); ++k) {
        after(last_compute_[teams(home.group).teams[k].index()]);
        use(home, k, false);
      }
      for (size_t k = 0; k < teams(copy.group).teams.size(); ++k) {
        after(last_compute_[teams(copy.group).teams[k].index()]);
        use(copy, k, true);
      }
      after(state.written);
      add(TaskKind::Send, moves.back().traffic, {}, tensor, -1);
    }
  }
}

}  // namespace windlass
