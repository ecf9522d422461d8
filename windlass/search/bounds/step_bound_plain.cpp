// Plain steps: one micro-batch on one team, every saved tensor kept. All their tasks are walked, in
// the order of lowering, so that their end is the simulated one if nothing waits for memory:
// streamed weights, gradients that are reduced in buckets, and updates.

#include <algorithm>

#include "windlass/graph/op_info.h"
#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

bool has_master(const Op& op) { return op.inputs.size() > 2 && op.inputs[2].valid(); }

}  // namespace

// What is the same for all strategies.
void StepBound::State::list_weights() {
  const Graph& graph = training.graph;
  own_terms = facts.shared_terms.empty();
  std::vector<int32_t> left = terms_of;
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i)
    for (TensorId output : graph.ops[i].outputs) {
      if (!output.valid() || facts.term_of[output.index()] < 0) continue;
      const OpId forward = graph.ops[i].forward;
      own_terms = own_terms && forward.valid() && !op_info(graph[forward].kind).view;
      --left[static_cast<size_t>(facts.term_of[output.index()])];
    }
  own_terms = own_terms && std::ranges::all_of(left, [](int32_t terms) { return terms == 0; });

  const auto update_of = [&](TensorId id) {
    return id.valid() ? facts.update_index[id.index()] : -1;
  };
  weights_of.resize(training.forward_ops);
  saved_weights_of.resize(training.forward_ops);
  for (size_t i = 0; i < training.forward_ops; ++i)
    for (size_t k = 0; k < graph.ops[i].inputs.size(); ++k) {
      const int32_t u = update_of(graph.ops[i].inputs[k]);
      if (u < 0) continue;
      weights_of[i].push_back(u);
      if (facts.first_use[static_cast<size_t>(u)] != std::pair(OpId(i), static_cast<int32_t>(k)))
        further_uses.push_back({u, i, k});
    }
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = graph.ops[i];
    if (!op.forward.valid()) continue;
    for (size_t k = op.inputs.size() - op.saved.size(); k < op.inputs.size(); ++k)
      if (const int32_t u = update_of(op.inputs[k]); u >= 0)
        saved_weights_of[op.forward.index()].push_back(u);
  }
  for (size_t u = 0; u < facts.updates.size(); ++u) first_used.push_back(u);
  std::ranges::stable_sort(first_used, {}, [&](size_t u) { return facts.first_use[u]; });

  // Updates with the same work for the same number of elements.
  const size_t first = training.forward_ops + training.backward_ops;
  std::vector<size_t> kinds;
  for (size_t u = 0; u < facts.updates.size(); ++u) {
    const auto kind = std::ranges::find_if(kinds, [&](size_t other) {
      const Op &a = graph.ops[first + u], &b = graph.ops[first + other];
      const auto dtype = [&](TensorId id) { return graph[id].type.dtype; };
      return a.attrs == b.attrs && dtype(a.inputs[0]) == dtype(b.inputs[0]) &&
             dtype(a.inputs[1]) == dtype(b.inputs[1]) && has_master(a) == has_master(b);
    });
    update_kind.push_back(static_cast<int32_t>(kind - kinds.begin()));
    if (kind == kinds.end()) kinds.push_back(u);
  }
  weights.resize(facts.updates.size());
}

bool StepBound::State::begin_plain() {
  streams = backward_pass = false;
  // Clipped updates wait for all gradients.
  return own_terms && !training.squares.valid() && keeps_all && strategy->micro_batches == 1 &&
         alike && plan_weights();
}

// False if a weight or its gradient is brought to another layout on the way.
bool StepBound::State::plan_weights() {
  for (const WeightUse& use : further_uses) {
    const auto [op, input] = facts.first_use[static_cast<size_t>(use.update)];
    const OpTemplate &a = *chosen[op.index()]->made, &b = *chosen[use.op]->made;
    if (a.inputs()[input].layout != b.inputs()[use.input].layout ||
        a.input_gradients()[input].layout != b.input_gradients()[use.input].layout)
      return false;
  }
  bool any_streamed = false;
  stream_bytes = host_bytes = 0;
  for (size_t u = 0; u < weights.size(); ++u) {
    const auto [op, input] = facts.first_use[u];
    const OpTemplate& made = *chosen[op.index()]->made;
    const OperandTemplate &weight = made.inputs()[input], &gradient = made.input_gradients()[input];
    if (tables.settled(gradient.layout) != weight.layout || tables.layout(weight.layout).halo())
      return false;
    Weight& state = weights[u];
    state.digits = tables.partial_digits(gradient.layout);
    state.layout = weight.layout;
    state.elements = weight.elements;
    state.gradient_elements = gradient.elements;
    state.residency = strategy->weights[u];
    if (state.digits == 0) state.residency.zero = 0;
    // Shares of what rests on hosts keep to one of them, and hosts with other devices are told
    // apart.
    const bool on_host = state.residency.host || state.residency.host_update;
    if ((on_host && !hosts_alike) || (state.residency.host && state.residency.zero > 0 &&
                                      tables.within_hosts(state.digits, group, {}) != state.digits))
      return false;
    state.unit = -1;
    const bool streamed = state.residency.zero == 3 || state.residency.host;
    any_streamed = any_streamed || streamed;
    // Brought twice, and at rest; on the host for every member of the group.
    const TrainingFacts::Update& sizes = facts.updates[u];
    if (streamed) stream_bytes += 4 * allocated(weight.elements * sizes.weight_size).value;
    if (state.residency.host || state.residency.host_update)
      host_bytes += weight.elements * static_cast<int64_t>(members.size()) *
                    (2 * sizes.weight_size + sizes.gradient_size + sizes.state_size);
  }
  begin_updates();
  units.clear();
  streams = any_streamed;
  if (streams) make_units();
  return true;
}

void StepBound::State::begin_updates() {
  bucket_count = 0;
  ready.clear();
  ready_weights.clear();
  closing_work = 0;
  for (Weight& weight : weights) {
    weight.streamed = weight.gradient = -1;
    weight.here = weight.updated = false;
  }
}

// Batches of streamed weights, in the order the forward pass wants them.
void StepBound::State::make_units() {
  Residency last;
  int64_t bytes = 0;
  for (size_t u : first_used) {
    Weight& weight = weights[u];
    if (weight.residency.zero < 3 && !weight.residency.host) continue;
    if (units.empty() || bytes >= strategy->bucket.value || weight.residency != last) {
      units.emplace_back();
      bytes = 0;
      last = weight.residency;
    }
    units.back().push_back(static_cast<int32_t>(u));
    bytes += byte_size(training.graph[facts.updates[u].weight].type).value;
    weight.unit = static_cast<int32_t>(units.size() - 1);
  }
}

// All that is ever in memory, at once.
bool StepBound::State::fits_surely() const {
  const auto& group_devices = strategy->groups[0];
  const int64_t bytes = plain_bytes + stream_bytes + moved_bytes + most_workspace;
  if (bytes > usable_memory(problem.machine[group_devices.front()], *strategy).value) return false;
  return host_bytes == 0 || std::ranges::all_of(group_devices, [&](DeviceId device) {
           return host_bytes <= problem.machine[problem.machine[device].node].memory.value;
         });
}

// The backward pass brings streamed weights once more.
void StepBound::State::turn_back() {
  backward_pass = true;
  if (!plain || !streams) return;
  for (Weight& weight : weights) weight.here = false;
}

const LaneTasks::Flow& StepBound::State::collective_flow(Collective collective, int32_t digits,
                                                         int64_t bytes) {
  const uint64_t key = static_cast<uint64_t>(bytes) << 20 | static_cast<uint64_t>(digits) << 4 |
                       static_cast<uint64_t>(collective);
  const auto [entry, fresh] = traffic_index.try_emplace(key, -1);
  if (fresh)
    entry->second = tables.collective(collective, group, tables.digits(digits), Bytes(bytes));
  const LaneTasks::Flow& flow = *flow_of(entry->second);
  possible = possible && flow.possible;
  return flow;
}

const LaneTasks::Flow& StepBound::State::host_flow(bool to_host, int64_t bytes) {
  constexpr uint64_t kOut = 14, kIn = 15;  // beside the collectives
  const uint64_t key = static_cast<uint64_t>(bytes) << 20 | (to_host ? kOut : kIn);
  const auto [entry, fresh] = traffic_index.try_emplace(key, -1);
  if (fresh) entry->second = tables.host_copies(group, members, to_host, Bytes(bytes));
  const LaneTasks::Flow& flow = *flow_of(entry->second);
  possible = possible && flow.possible;
  return flow;
}

// Of weights that are updated together; the first one says how.
Nanoseconds StepBound::State::update_time(int32_t first, double elements, bool on_host) {
  const auto u = static_cast<size_t>(first);
  auto& times = on_host ? host_update_times : update_times;
  const uint64_t key = static_cast<uint64_t>(elements) << 8 | static_cast<uint64_t>(update_kind[u]);
  const auto [entry, fresh] = times.try_emplace(key, 0);
  if (!fresh) return entry->second;
  const Op& op = training.graph.ops[training.forward_ops + training.backward_ops + u];
  const Work update = update_work(std::get<UpdateAttrs>(op.attrs).optimizer, elements,
                                  training.graph[op.inputs[0]].type.dtype,
                                  training.graph[op.inputs[1]].type.dtype, has_master(op));
  if (!on_host) return entry->second = time_of_work(tables.work(update));
  const Device& device = problem.machine[strategy->groups[0].front()];
  return entry->second =
             duration_of(problem.cost.price_on_host(update, problem.machine[device.node]));
}

void StepBound::State::read_weights(std::span<const int32_t> list) {
  for (int32_t u : list) {
    const Weight& weight = weights[static_cast<size_t>(u)];
    if (weight.unit < 0) continue;
    if (!weight.here) {
      const auto unit = static_cast<size_t>(weight.unit);
      fetch(unit);
      // The next one that will be wanted.
      if (backward_pass ? unit > 0 : unit + 1 < units.size())
        fetch(backward_pass ? unit - 1 : unit + 1);
    }
    wait_for(weight.streamed);
  }
}

// Brings weights to the devices: from the host, or from those that share them.
void StepBound::State::fetch(size_t unit) {
  const bool host = weights[static_cast<size_t>(units[unit].front())].residency.host;
  const auto wanted = [&](int32_t u) {
    const Weight& weight = weights[static_cast<size_t>(u)];
    return !weight.here && !weight.updated;
  };
  // Weights that lie alike are fetched by one task.
  for (int32_t first : units[unit]) {
    if (!wanted(first)) continue;
    const int32_t digits = weights[static_cast<size_t>(first)].digits;
    int64_t bytes = 0;
    fetched.clear();
    for (int32_t u : units[unit]) {
      const Weight& weight = weights[static_cast<size_t>(u)];
      if (!wanted(u) || (!host && weight.digits != digits)) continue;
      fetched.push_back(u);
      bytes += weight.elements *
               facts.element_size[facts.updates[static_cast<size_t>(u)].weight.index()];
    }
    const LaneTasks::Lane lane = host ? LaneTasks::kSwapIn : LaneTasks::kReduce;
    tasks.after(lane, tasks.last(LaneTasks::kCompute));
    const int32_t task =
        tasks.add(lane, host ? host_flow(false, bytes)
                             : collective_flow(Collective::AllGather, digits, bytes));
    for (int32_t u : fetched) {
      weights[static_cast<size_t>(u)].streamed = task;
      weights[static_cast<size_t>(u)].here = true;
    }
  }
}

// The gradient of a weight is there.
void StepBound::State::add_gradient(int32_t update, int32_t done) {
  Weight& weight = weights[static_cast<size_t>(update)];
  weight.gradient = done;
  size_t at = 0;
  while (at < bucket_count &&
         (buckets[at].key != weight.residency || buckets[at].digits != weight.digits))
    ++at;
  if (at == bucket_count) {
    if (bucket_count == buckets.size()) buckets.emplace_back();
    ++bucket_count;
    buckets[at].key = weight.residency;
    buckets[at].digits = weight.digits;
    buckets[at].updates.clear();
    buckets[at].bytes = 0;
  }
  buckets[at].updates.push_back(update);
  buckets[at].bytes +=
      weight.gradient_elements * facts.updates[static_cast<size_t>(update)].gradient_size;
  if (buckets[at].bytes >= strategy->bucket.value) flush(buckets[at]);
}

void StepBound::State::flush(Bucket& bucket) {
  if (tables.members(bucket.digits) > 1) {
    for (int32_t u : bucket.updates)
      tasks.after(LaneTasks::kReduce, weights[static_cast<size_t>(u)].gradient);
    const Collective how = bucket.key.zero >= 1 ? Collective::ReduceScatter : Collective::AllReduce;
    const int32_t task =
        tasks.add(LaneTasks::kReduce, collective_flow(how, bucket.digits, bucket.bytes));
    for (int32_t u : bucket.updates) weights[static_cast<size_t>(u)].gradient = task;
  }
  for (int32_t u : bucket.updates) weights[static_cast<size_t>(u)].updated = true;
  if (bucket.key.host_update) {
    update_on_host(bucket.key, bucket.digits, bucket.updates);
  } else {
    const size_t begin = ready_weights.size();
    ready_weights.insert(ready_weights.end(), bucket.updates.begin(), bucket.updates.end());
    ready.push_back({bucket.key, bucket.digits, begin, ready_weights.size()});
  }
  bucket.updates.clear();
  bucket.bytes = 0;
}

int64_t StepBound::State::share_of(const Weight& weight) const {
  const int64_t parts = weight.residency.zero >= 1 ? tables.members(weight.digits) : 1;
  return (weight.elements + parts - 1) / parts;
}

void StepBound::State::gather_weights(int32_t digits, std::span<const int32_t> updates,
                                      int32_t done) {
  int64_t bytes = 0;
  for (int32_t u : updates)
    bytes += weights[static_cast<size_t>(u)].elements *
             facts.updates[static_cast<size_t>(u)].weight_size;
  tasks.after(LaneTasks::kReduce, done);
  tasks.add(LaneTasks::kReduce, collective_flow(Collective::AllGather, digits, bytes));
}

void StepBound::State::update_on_device(const Ready& batch) {
  const std::span<const int32_t> list(ready_weights.data() + batch.begin,
                                      ready_weights.data() + batch.end);
  double elements = 0;
  int64_t moved = 0;
  for (int32_t u : list) {
    const Weight& weight = weights[static_cast<size_t>(u)];
    const TrainingFacts::Update& sizes = facts.updates[static_cast<size_t>(u)];
    elements += static_cast<double>(share_of(weight));
    moved += share_of(weight) * (sizes.state_size + sizes.weight_size);
  }
  if (batch.key.host) {
    tasks.after(LaneTasks::kSwapIn, tasks.last(LaneTasks::kCompute));
    wait_for(tasks.add(LaneTasks::kSwapIn, host_flow(false, moved)));
  }
  for (int32_t u : list) {
    wait_for(weights[static_cast<size_t>(u)].gradient);
    wait_for(weights[static_cast<size_t>(u)].streamed);
  }
  const Nanoseconds duration = update_time(list.front(), elements, false);
  closing_work += duration;
  const int32_t done = work(duration);
  if (batch.key.host) {
    tasks.after(LaneTasks::kSwapOut, done);
    tasks.add(LaneTasks::kSwapOut, host_flow(true, moved));
  } else if (batch.key.zero == 1 || batch.key.zero == 2) {
    gather_weights(batch.digits, list, done);
  }
}

// As Tables has it, of the whole group.
int64_t StepBound::State::parts_on_host(int32_t layout, int32_t digits) {
  const uint64_t key = static_cast<uint64_t>(layout) << 32 | static_cast<uint64_t>(digits);
  const auto [entry, fresh] = host_parts.try_emplace(key, 0);
  if (fresh) entry->second = tables.parts_on_host(group, members, layout, digits);
  return entry->second;
}

void StepBound::State::update_on_host(const Residency& key, int32_t digits,
                                      std::span<const int32_t> updates) {
  double elements = 0;
  int64_t out = 0, in = 0;
  for (int32_t u : updates) {
    const Weight& weight = weights[static_cast<size_t>(u)];
    const TrainingFacts::Update& sizes = facts.updates[static_cast<size_t>(u)];
    const int64_t distinct = parts_on_host(weight.layout, key.zero >= 1 ? digits : 0);
    elements += static_cast<double>(share_of(weight) * distinct);
    out += share_of(weight) * sizes.gradient_size;
    in += share_of(weight) * sizes.weight_size;
  }
  for (int32_t u : updates)
    tasks.after(LaneTasks::kSwapOut, weights[static_cast<size_t>(u)].gradient);
  const int32_t left = tasks.add(LaneTasks::kSwapOut, host_flow(true, out));
  const auto after_readers = [&](LaneTasks::Lane lane) {
    for (int32_t u : updates) tasks.after(lane, weights[static_cast<size_t>(u)].streamed);
  };
  tasks.after(LaneTasks::kHost, left);
  after_readers(LaneTasks::kHost);
  int32_t done = tasks.add(LaneTasks::kHost, update_time(updates.front(), elements, true));
  if (!key.host) {
    tasks.after(LaneTasks::kSwapIn, done);
    tasks.after(LaneTasks::kSwapIn, tasks.last(LaneTasks::kCompute));
    after_readers(LaneTasks::kSwapIn);
    done = tasks.add(LaneTasks::kSwapIn, host_flow(false, in));
  }
  if ((key.zero == 1 || key.zero == 2) && !key.host) gather_weights(digits, updates, done);
}

void StepBound::State::finish_plain() {
  for (size_t i = 0; i < bucket_count; ++i)
    if (!buckets[i].updates.empty()) flush(buckets[i]);
  for (const Ready& batch : ready) update_on_device(batch);
}

}  // namespace windlass
