// Weights: where they live, how their gradients are summed and reduced, and how they are updated.

#include <algorithm>
#include <numeric>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {
const Op& Emitter::update_op(int32_t update) const {
  return training_.graph
      .ops[training_.forward_ops + training_.backward_ops + static_cast<size_t>(update)];
}

// Where each weight is updated, which terms its gradient has, and which weights travel together.
void Emitter::plan_weights() {
  const size_t updates = facts_.updates.size();
  weights_.resize(updates);
  streamed_.clear();
  terms_left_.assign(updates * strategy_->groups.size(), 0);
  terms_each_.assign(updates * strategy_->groups.size(), 0);
  for (size_t u = 0; u < updates; ++u) {
    // A weight is at home where it is used first.
    WeightState& state = weights_[u];
    const OpId op = facts_.first_use[u].first;
    const int32_t input = facts_.first_use[u].second;
    const int32_t stage = stage_of_[op.index()];
    state.home = strategy_->stages[static_cast<size_t>(stage)].backward_group;
    const OpTemplate& made = made_of(op, state.home);
    state.layout = made.inputs()[input].layout;
    state.elements = made.inputs()[input].elements;
    state.share = tables_.partial_digits(made.input_gradients()[input].layout);
    // A host holds all of a weight that rests there: who shares its update is on the same one.
    if (strategy_->weights[u].host)
      state.share = tables_.within_hosts(state.share, group_id(state.home));
    state.zero = state.share == 0 ? 0 : strategy_->weights[u].zero;
    state.unit = state.at_home = state.last_sum = -1;
    state.terms_left = 0;
    state.updated = false;
    state.fetched = {};
    state.written.clear();
    state.rest = state.shard = {};
    state.sums.clear();
    state.extra.clear();
  }
  const auto micro_batches = static_cast<int32_t>(strategy_->micro_batches);
  for (const TrainingFacts::Term& term : facts_.terms) {
    const int32_t stage = term.producer.valid() ? stage_of_[term.producer.index()] : 0;
    const int32_t group = strategy_->stages[static_cast<size_t>(stage)].backward_group;
    const size_t at = at_group(term.update, group);
    terms_left_[at] += micro_batches;
    ++terms_each_[at];
    weights_[static_cast<size_t>(term.update)].terms_left += micro_batches;
  }
  batch_terms_left_.clear();
  if (std::ranges::any_of(weights_, [](const WeightState& state) { return state.zero >= 2; }))
    for (int32_t each : terms_each_)
      batch_terms_left_.insert(batch_terms_left_.end(), static_cast<size_t>(micro_batches), each);
  for (size_t u = 0; u < updates; ++u)
    if (weights_[u].zero == 3 || strategy_->weights[u].host) return make_units();
}

// Batches of streamed weights, in the order the forward pass wants them.
void Emitter::make_units() {
  streamed_.assign(weights_.size() * strategy_->groups.size(), {});
  std::vector<size_t> order(weights_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t u) { return facts_.first_use[u]; });
  for (size_t u : order) {
    Residency residency = strategy_->weights[u];
    residency.zero = weights_[u].zero;
    if (residency.zero < 3 && !residency.host) continue;
    const int32_t stage = stage_of_[facts_.first_use[u].first.index()];
    const bool fits = !units_.empty() && units_.back().stage == stage &&
                      units_.back().bytes < strategy_->bucket.value &&
                      units_.back().residency == residency;
    if (!fits) units_.push_back({.stage = stage, .residency = residency});
    units_.back().updates.push_back(static_cast<int32_t>(u));
    units_.back().bytes += byte_size(training_.graph[facts_.updates[u].weight].type).value;
    weights_[u].unit = static_cast<int32_t>(units_.size() - 1);
  }
}

const Emitter::Value& Emitter::weight(TensorId tensor, const OperandTemplate& want, int32_t group) {
  const int32_t layout = want.layout;
  const int32_t u = facts_.update_index[tensor.index()];
  if (u < 0) return data(tensor, 0, want, group);
  if (weights_[static_cast<size_t>(u)].unit >= 0)
    return passing_ = stream(u, tensor, layout, group);
  if (const Value* there = find(kForward, tensor, 0, layout, group)) return *there;
  for (int32_t i = heads_[kForward][row(tensor, 0)]; i >= 0;) {
    const Value other = values_[static_cast<size_t>(i)];
    if (other.group == group) return redistribute(kForward, tensor, 0, other, layout, group);
    i = other.next;
  }
  const BufferId buffer =
      buffers(group, {.kind = BufferKind::Weight, .tensor = tensor, .layout = layout},
              bytes(tensor, want.elements), true, true);
  WeightState& state = weights_[static_cast<size_t>(u)];
  if (group == state.home && layout == state.layout)
    state.at_home = static_cast<int32_t>(values_.size());
  return put(kForward, tensor, 0, {.group = group, .layout = layout, .buffer = buffer});
}

const Emitter::Value& Emitter::home_weight(int32_t u) {
  const WeightState& state = weights_[static_cast<size_t>(u)];
  if (state.at_home >= 0) return values_[static_cast<size_t>(state.at_home)];
  return weight(update_of(u).weight, {state.layout, state.elements}, state.home);
}

// A weight comes to where it is at home; other groups, and ops that want it otherwise, get a copy
// of their own from there, each time.
Emitter::Value Emitter::stream(int32_t u, TensorId tensor, int32_t layout, int32_t group) {
  const WeightState& state = weights_[static_cast<size_t>(u)];
  if (streamed(u, group).run != run_) {
    fetch(state.unit, group);
    const int32_t next = state.unit + (item_backward_ ? -1 : 1);
    const bool more =
        group == state.home && !strategy_->in_turn && next >= 0 &&
        static_cast<size_t>(next) < units_.size() &&
        units_[static_cast<size_t>(next)].stage == units_[static_cast<size_t>(state.unit)].stage;
    if (more) fetch(next, group);
  }
  Value value = streamed(u, group).value;
  if (group == state.home && value.layout == layout) return value;
  for (const MoveTemplate& move : tables_.moves(training_.graph[tensor].type, value.layout,
                                                group_id(state.home), layout, group_id(group)))
    value = carry(tensor, -1, move, move.plain_movement, value, group);
  if (value.layout != layout) see(value, tensor, layout);
  return value;
}

// Brings the weights of a unit to the devices of their group, for this run of a group.
void Emitter::fetch(int32_t index, int32_t wanted_by) {
  const Unit& unit = units_[static_cast<size_t>(index)];
  const int32_t group = weights_[static_cast<size_t>(unit.updates[0])].home;
  const auto& list = teams(group).teams;
  // Weights that lie alike are fetched by one task, in the order of the first ones: sets of digits
  // are numbered as they come up, which must not matter.
  std::vector<std::pair<int32_t, std::vector<int32_t>>> alike;  // by set of digits
  for (int32_t u : unit.updates) {
    WeightState& state = weights_[static_cast<size_t>(u)];
    // Updated weights are for the next step.
    if (streamed(u, wanted_by).run == run_ || state.updated) continue;
    const int32_t digits = unit.residency.host ? 0 : state.share;
    auto list_of = std::ranges::find(alike, digits, &decltype(alike)::value_type::first);
    if (list_of == alike.end()) list_of = alike.insert(list_of, {digits, {}});
    list_of->second.push_back(u);
  }
  for (const auto& entry : alike) {
    const int32_t digits = entry.first;
    const std::vector<int32_t>& updates = entry.second;
    int64_t total = 0;
    for (int32_t u : updates) {
      WeightState& state = weights_[static_cast<size_t>(u)];
      const TensorId tensor = update_of(u).weight;
      const int64_t size = bytes(tensor, state.elements);
      total += size;
      Value value = {.group = group, .layout = state.layout};
      value.buffer = buffers(
          group, {.kind = BufferKind::Weight, .tensor = tensor, .layout = state.layout}, size);
      streamed(u, wanted_by) = {run_, value};
      if (!state.rest.valid()) state.rest = rest_buffers(u);
    }
    const auto finish = [&](TaskId task, bool per_team) {
      for (int32_t u : updates) {
        Value& value = streamed(u, wanted_by).value;
        value.ready = task;
        value.per_team = per_team;
        weights_[static_cast<size_t>(u)].fetched = {task, per_team};
      }
    };
    const TensorId first_tensor = update_of(updates[0]).weight;
    if (!unit.residency.host) {
      for (TeamId team : list) on(teams_->lane(team, LaneKind::Reduce));
      for (size_t k = 0; k < list.size(); ++k) {
        after(last_compute_[list[k].index()]);
        for (size_t i = 0; i < updates.size(); ++i) {
          read(weights_[static_cast<size_t>(updates[i])].rest, k, UseKind::From, i);
          write(streamed(updates[i], wanted_by).value.buffer, k, UseKind::To, i);
        }
      }
      const int32_t traffic = tables_.collective(Collective::AllGather, group_id(group),
                                                 tables_.digits(digits), Bytes(total));
      finish(add({.kind = TaskKind::Gather,
                  .price = traffic,
                  .tensor = first_tensor,
                  .group = group_id(group),
                  .how = tables_.exchange(Collective::AllGather, group_id(group), digits)}),
             false);
      continue;
    }
    TaskId first_task;
    for (size_t k = 0; k < list.size(); ++k) {
      on(teams_->lane(list[k], LaneKind::SwapIn));
      after(last_compute_[list[k].index()]);
      for (size_t i = 0; i < updates.size(); ++i) {
        read(weights_[static_cast<size_t>(updates[i])].rest, k, UseKind::From, i);
        write(streamed(updates[i], wanted_by).value.buffer, k, UseKind::To, i);
      }
      const int32_t traffic =
          tables_.host_copies(group_id(group), teams(group).members[k], false, Bytes(total));
      const TaskId task = add({.kind = TaskKind::SwapIn,
                               .price = traffic,
                               .tensor = first_tensor,
                               .group = group_id(group)});
      if (k == 0) first_task = task;
    }
    finish(first_task, true);
  }
}

// Where a streamed weight rests between its uses: a share on each replica, or one copy on the host.
BufferId Emitter::rest_buffers(int32_t u) {
  const WeightState& state = weights_[static_cast<size_t>(u)];
  const TensorId tensor = update_of(u).weight;
  Content content = {.kind = BufferKind::Weight, .tensor = tensor, .layout = state.layout};
  if (strategy_->weights[static_cast<size_t>(u)].host)
    return host_buffers(state.home, content, bytes(tensor, state.elements), true, true);
  content.share = state.share;
  const int64_t share = largest_part(state.elements, tables_.members(state.share));
  return buffers(state.home, content, bytes(tensor, share), true, true);
}

// The sum that a term of a weight's gradient is added to, in a buffer like that of the term.
int32_t Emitter::sum_for(int32_t u, const ResultTemplate& term, int32_t group,
                         int32_t micro_batch) {
  const int32_t batch = reduced_each_time(u, term.layout) ? micro_batch : -1;
  std::vector<Sum>& sums = weights_[static_cast<size_t>(u)].sums;
  for (size_t i = 0; i < sums.size(); ++i)
    if (sums[i].value.group == group && sums[i].value.layout == term.layout &&
        sums[i].micro_batch == batch)
      return static_cast<int32_t>(i);
  Sum& sum = sums.emplace_back();
  sum.micro_batch = batch;
  sum.elements = term.elements;
  sum.value.group = group;
  sum.value.layout = term.layout;
  Buffer like = term.buffer;
  like.tensor = update_of(u).gradient;
  sum.value.buffer = buffers(group, batch, like);
  return static_cast<int32_t>(sums.size() - 1);
}

// Adds a gradient that others read too by a task of its own.
void Emitter::add_term(int32_t u, const Value& given, int32_t micro_batch) {
  const Value term = given;
  const TensorId tensor = update_of(u).gradient;
  ResultTemplate like;
  like.layout = term.layout;
  like.elements = largest_elements(tables_.layout(term.layout), training_.graph[tensor].type.shape);
  like.buffer.kind = BufferKind::WeightGradient;
  like.buffer.tensor = tensor;
  like.buffer.bytes = allocated(bytes(tensor, like.elements));
  like.buffer.group = group_id(term.group);
  like.buffer.layout = like.layout;
  const int32_t sum = sum_for(u, like, term.group, micro_batch);
  const BufferId buffer = sum_of({u, sum}).value.buffer;
  const bool adds = sum_of({u, sum}).begun;
  TaskId done;
  const int32_t work = tables_.sum_work(bytes(tensor, like.elements));
  const auto& list = teams(term.group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    after(term, k);
    read(term, k, UseKind::Term);
    write(buffer, k, UseKind::Sum, 0, adds);
    const TaskId task = add({.kind = TaskKind::Backward,
                             .price = work,
                             .micro_batch = micro_batch,
                             .tensor = tensor,
                             .group = group_id(term.group)});
    if (k == 0) done = task;
  }
  finish_term(u, sum, micro_batch, done);
}

// ZeRO 2 and 3 keep no whole gradient from one micro-batch to the next.
bool Emitter::reduced_each_time(int32_t u, int32_t layout) {
  const WeightState& state = weights_[static_cast<size_t>(u)];
  return state.zero >= 2 && tables_.partial_digits(layout) == state.share &&
         tables_.settled(layout) == state.layout;
}

// A term has been added to a sum.
void Emitter::finish_term(int32_t u, int32_t index, int32_t micro_batch, TaskId done) {
  WeightState& state = weights_[static_cast<size_t>(u)];
  state.sums[static_cast<size_t>(index)].begun = true;
  Value& added = state.sums[static_cast<size_t>(index)].value;
  const int32_t group = added.group;
  added.ready = done;
  added.per_team = added.computed = true;
  --state.terms_left;
  const size_t at = at_group(u, group);
  const bool step_done = --terms_left_[at] == 0;
  bool batch_done = step_done;
  if (!batch_terms_left_.empty()) {
    const auto batches = static_cast<size_t>(strategy_->micro_batches);
    batch_done = --batch_terms_left_[at * batches + static_cast<size_t>(micro_batch)] == 0;
  }
  // Sums that are final: those of this micro-batch, or of the step.
  if (batch_done) {
    for (size_t i = 0; i < state.sums.size(); ++i) {
      Sum& sum = state.sums[i];
      if (sum.queued || sum.value.group != group) continue;
      if (sum.micro_batch != micro_batch && !step_done) continue;
      if (group != state.home) {
        sum.queued = true;
        add_extra(u, sum);
      } else if (sum.micro_batch >= 0 && state.terms_left > 0) {
        queue(u, static_cast<int32_t>(i));
      }
    }
  }
  if (state.terms_left == 0) finish_gradient(u);
}

// All there is: one sum that lies like the weight is reduced with others, the rest is brought to
// the weight's layout and added when it is updated.
void Emitter::finish_gradient(int32_t u) {
  WeightState& state = weights_[static_cast<size_t>(u)];
  bool reduced = state.shard.valid();
  for (const Sum& sum : state.sums) reduced = reduced || sum.micro_batch >= 0;
  std::vector<int32_t> last;
  for (size_t i = 0; i < state.sums.size(); ++i) {
    Sum& sum = state.sums[i];
    if (sum.queued || sum.value.group != state.home) continue;
    const bool main = !reduced && last.empty() && tables_.settled(sum.value.layout) == state.layout;
    if (main || sum.micro_batch >= 0) {
      last.push_back(static_cast<int32_t>(i));
    } else {
      sum.queued = true;
      add_extra(u, sum);
    }
  }
  // A full bucket is updated at once, so that everything else must be there.
  for (int32_t i : last) queue(u, i);
  if (reduced || !last.empty()) return;
  Sum& sum = state.sums.emplace_back();
  sum.value = state.extra.front();
  sum.elements = state.elements;
  state.extra.erase(state.extra.begin());
  queue(u, static_cast<int32_t>(state.sums.size() - 1));
}

void Emitter::add_extra(int32_t u, const Sum& sum) {
  WeightState& state = weights_[static_cast<size_t>(u)];
  state.extra.push_back(
      redistribute(kForward, update_of(u).gradient, 0, sum.value, state.layout, state.home));
}

Emitter::Bucket& Emitter::bucket_of(const BucketKey& key) {
  for (size_t i = 0; i < bucket_count_; ++i)
    if (buckets_[i].key == key) return buckets_[i];
  if (bucket_count_ == buckets_.size()) buckets_.emplace_back();
  Bucket& bucket = buckets_[bucket_count_++];
  bucket.key = key;
  bucket.sums.clear();
  bucket.bytes = 0;
  return bucket;
}

void Emitter::queue(int32_t u, int32_t index) {
  const Residency& residency = strategy_->weights[static_cast<size_t>(u)];
  WeightState& state = weights_[static_cast<size_t>(u)];
  Sum& sum = state.sums[static_cast<size_t>(index)];
  sum.queued = true;
  Bucket& bucket = bucket_of({sum.value.group, state.zero, residency.host, residency.host_update,
                              tables_.partial_digits(sum.value.layout), state.share});
  bucket.sums.push_back({u, index});
  bucket.bytes += sum.elements * update_of(u).gradient_size;
  if (bucket.bytes >= strategy_->bucket.value) flush(bucket);
}

void Emitter::flush_all() {
  for (size_t i = 0; i < bucket_count_; ++i)
    if (!buckets_[i].sums.empty()) flush(buckets_[i]);
}

// Reduces the gradients of a bucket; weights whose gradient is all there are updated, once.
void Emitter::flush(Bucket& bucket) {
  reduce(bucket);
  const size_t first_sum = ready_sums_.size();
  for (const SumRef& ref : bucket.sums) {
    WeightState& state = weight_of(ref);
    state.last_sum = ref.sum;
    if (state.terms_left > 0 || state.updated) continue;
    state.updated = true;
    ready_sums_.push_back(ref);
  }
  bucket.sums.clear();
  bucket.bytes = 0;
  if (ready_sums_.size() > first_sum) update(bucket.key, first_sum);
}

// Over the replicas: everybody gets the whole sum, or its share of it.
void Emitter::reduce(const Bucket& bucket) {
  const BucketKey& key = bucket.key;
  const auto& list = teams(key.group).teams;
  const int64_t parts = tables_.members(key.digits);
  if (parts == 1) return;
  const bool scatter = key.zero >= 1 && key.digits == key.share;
  const bool shards = key.zero >= 2 && scatter;
  for (TeamId team : list) on(teams_->lane(team, LaneKind::Reduce));
  for (size_t i = 0; i < bucket.sums.size(); ++i) {
    const SumRef& ref = bucket.sums[i];
    WeightState& state = weight_of(ref);
    const Sum& sum = sum_of(ref);
    const TrainingFacts::Update& facts = update_of(ref.update);
    const bool begun = state.shard.valid();
    if (shards && !begun)
      state.shard = buffers(key.group,
                            {.kind = BufferKind::WeightGradient,
                             .tensor = facts.gradient,
                             .layout = state.layout,
                             .share = key.share},
                            largest_part(sum.elements, parts) * facts.gradient_size);
    for (size_t k = 0; k < list.size(); ++k) {
      after(sum.value, k);
      if (!shards) {
        write(sum.value.buffer, k, UseKind::From, i);
        continue;
      }
      read(sum.value, k, UseKind::From, i);
      write(state.shard, k, UseKind::To, i, begun);
    }
  }
  const Collective collective = scatter ? Collective::ReduceScatter : Collective::AllReduce;
  const TaskId task =
      add({.kind = TaskKind::Reduce,
           .price = tables_.collective(collective, group_id(key.group), tables_.digits(key.digits),
                                       Bytes(bucket.bytes)),
           .tensor = update_of(bucket.sums[0].update).gradient,
           .group = group_id(key.group),
           .how = tables_.exchange(collective, group_id(key.group), key.digits)});
  for (const SumRef& ref : bucket.sums) {
    Value& value = sum_of(ref).value;
    value.ready = task;
    value.per_team = value.computed = false;
    if (shards) value.buffer = weight_of(ref).shard;
  }
}

}  // namespace windlass
