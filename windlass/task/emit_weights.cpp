// Weights: where they live, and how they come to where they are used.

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
    state.home = strategy_->stages[static_cast<size_t>(stage)].group;
    const OpTemplate& made = made_of(op, state.home);
    const OperandTemplate kept =
        tables_.kept_weight(facts_.updates[u].weight, made.inputs()[input]);
    state.layout = kept.layout;
    state.elements = kept.elements;
    state.share = tables_.partial_digits(made.input_gradients()[input].layout);
    // A host holds all of a weight that rests there: who shares its update is on the same one.
    if (strategy_->weights[u].host)
      state.share = tables_.within_hosts(state.share, group_id(state.home),
                                         kinds_[static_cast<size_t>(state.home)]);
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
    const int32_t group = strategy_->stages[static_cast<size_t>(stage)].group;
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

// Of a weight that is updated in another group. No task reads it: the update there is the same one.
void Emitter::add_tied_state(int32_t u, const OperandTemplate& want, int32_t group) {
  const Residency& residency = strategy_->weights[static_cast<size_t>(u)];
  if (!training_.options.ties_have_state || residency.host || residency.host_update) return;
  const TrainingFacts::Update& facts = update_of(u);
  const int32_t share = residency.zero >= 1 ? weights_[static_cast<size_t>(u)].share : 0;
  const int64_t bytes = largest_part(want.elements, tables_.members(share)) * facts.state_size;
  if (bytes > 0)
    buffers(group,
            {.kind = BufferKind::OptimizerState,
             .tensor = facts.weight,
             .layout = want.layout,
             .share = share},
            bytes, true, true);
}

const Emitter::Value& Emitter::weight(TensorId tensor, const OperandTemplate& want, int32_t group) {
  const int32_t layout = want.layout;
  const int32_t u = facts_.update_index[tensor.index()];
  if (u < 0) return data(tensor, 0, want, group);
  if (!units_.empty() && weights_[static_cast<size_t>(u)].unit >= 0)
    return passing_ = stream(u, tensor, layout, group);
  if (const Value* there = find(kForward, tensor, 0, layout, group)) return *there;
  for (int32_t i = heads_[kForward][row(tensor, 0)]; i >= 0;) {
    const Value other = values_[static_cast<size_t>(i)];
    if (other.group == group) return redistribute(kForward, tensor, 0, other, layout, group);
    i = other.next;
  }
  const OperandTemplate kept = tables_.kept_weight(tensor, want);
  const BufferId buffer =
      buffers(group, {.kind = BufferKind::Weight, .tensor = tensor, .layout = kept.layout},
              bytes(tensor, kept.elements), true, true);
  WeightState& state = weights_[static_cast<size_t>(u)];
  if (group != state.home) add_tied_state(u, kept, group);
  if (group == state.home && kept.layout == state.layout)
    state.at_home = static_cast<int32_t>(values_.size());
  const Value value = {.group = group, .layout = kept.layout, .buffer = buffer};
  const Value& there = put(kForward, tensor, 0, value);
  return kept.layout == layout ? there : redistribute(kForward, tensor, 0, value, layout, group);
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
      int64_t mine = total;
      if (unequal_) {
        mine = 0;
        for (int32_t u : updates) {
          const WeightState& state = weights_[static_cast<size_t>(u)];
          const TensorId tensor = update_of(u).weight;
          mine += bytes(tensor, own(state.elements, tensor, state.layout, group, k));
        }
      }
      const int32_t traffic =
          tables_.host_copies(group_id(group), teams(group).members[k], false, Bytes(mine));
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

}  // namespace windlass
