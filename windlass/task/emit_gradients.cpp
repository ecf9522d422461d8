// Gradients of weights: their terms are added up, and the sums reduced over replicas.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/emitter.h"

namespace windlass {

// The sum that a term of a weight's gradient is added to, in a buffer like that of the term.
int32_t Emitter::sum_for(int32_t u, const ResultTemplate& term, int32_t group,
                         int32_t micro_batch) {
  const int32_t batch = reduced_each_time(u, term.buffer.layout) ? micro_batch : -1;
  std::vector<Sum>& sums = weights_[static_cast<size_t>(u)].sums;
  for (size_t i = 0; i < sums.size(); ++i)
    if (sums[i].value.group == group && sums[i].value.layout == term.buffer.layout &&
        sums[i].micro_batch == batch)
      return static_cast<int32_t>(i);
  Sum& sum = sums.emplace_back();
  sum.micro_batch = batch;
  sum.elements = term.elements;
  sum.value.group = group;
  sum.value.layout = term.buffer.layout;
  sum.value.buffer = buffers(group, batch, update_of(u).gradient, term.buffer);
  return static_cast<int32_t>(sums.size() - 1);
}

// Adds a gradient that others read too by a task of its own.
void Emitter::add_term(int32_t u, const Value& given, int32_t micro_batch) {
  const Value term = given;
  const TensorId tensor = update_of(u).gradient;
  ResultTemplate like;
  like.elements = largest_elements(tables_.layout(term.layout), training_.graph[tensor].type.shape);
  like.buffer.kind = BufferKind::WeightGradient;
  like.buffer.bytes = allocated(bytes(tensor, like.elements));
  like.buffer.group = group_id(term.group);
  like.buffer.layout = term.layout;
  const int32_t sum = sum_for(u, like, term.group, micro_batch);
  const BufferId buffer = sum_of({u, sum}).value.buffer;
  const bool adds = sum_of({u, sum}).begun;
  TaskId done;
  const auto& list = teams(term.group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    const int32_t work =
        tables_.sum_work(bytes(tensor, own(like.elements, tensor, term.layout, term.group, k)));
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
  std::vector<int32_t>& last = last_sums_;
  last.clear();
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

// Gradients that came from elsewhere join the sum before it leaves: a copy cannot add, and leaves
// with all of its buffer.
void Emitter::add_extras(const SumRef& ref) {
  WeightState& state = weight_of(ref);
  Value& sum = sum_of(ref).value;
  const TrainingFacts::Update& facts = update_of(ref.update);
  std::vector<Value> terms = std::move(state.extra);
  state.extra.clear();
  bool adds = sum.view < 0;
  if (!adds) {  // the part that is wanted of a larger one
    terms.insert(terms.begin(), sum);
    sum = {.group = sum.group, .layout = state.layout};
    sum.buffer = buffers(
        sum.group,
        {.kind = BufferKind::WeightGradient, .tensor = facts.gradient, .layout = state.layout},
        state.elements * facts.gradient_size);
  }
  const auto& list = teams(sum.group).teams;
  for (const Value& term : terms) {
    TaskId first;
    for (size_t k = 0; k < list.size(); ++k) {
      const int32_t work = tables_.sum_work(graph_.buffers[sum.buffer.index() + k].bytes.value);
      on(teams_->lane(list[k], LaneKind::Compute));
      compute_after(sum, k);
      compute_after(term, k);
      read(term, k, UseKind::Term);
      write(sum.buffer, k, UseKind::Sum, 0, adds);
      const TaskId task = add({.kind = TaskKind::Backward,
                               .price = work,
                               .tensor = facts.gradient,
                               .group = group_id(sum.group)});
      if (k == 0) first = task;
    }
    sum.ready = first;
    sum.per_team = sum.computed = true;
    adds = true;
  }
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
  if (!training_.options.overlaps_reduction)
    for (TeamId team : list) on(teams_->lane(team, LaneKind::Compute));
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
