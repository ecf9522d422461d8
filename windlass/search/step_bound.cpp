#include "windlass/search/step_bound.h"

#include <algorithm>
#include <cmath>

#include "windlass/search/step_bound_state.h"

namespace windlass {
namespace {

// The simulator rounds loads to 1/1024 of a volume: traffic may end so much earlier than alone.
constexpr double kRounding = 1 - 1.0 / 256;

}  // namespace

StepBound::State::State(const Problem& p, const TrainingGraph& t)
    : problem(p), training(t), facts(t), tables(t, facts, p.machine) {
  terms_of.assign(facts.updates.size(), 0);
  for (const TrainingFacts::Term& term : facts.terms) ++terms_of[static_cast<size_t>(term.update)];
  for (const TrainingFacts::Update& update : facts.updates) {
    const double elements = static_cast<double>(element_count(t.graph[update.weight].type.shape));
    all_elements += elements;
    all_bytes += elements * static_cast<double>(update.gradient_size);
  }
  updates_of.resize(t.forward_ops);
  for (size_t u = 0; u < facts.updates.size(); ++u)
    updates_of[facts.first_use[u].first.index()].push_back(static_cast<int32_t>(u));
  update_elements.assign(facts.updates.size(), 0);
  update_parts.assign(facts.updates.size(), 1);
  list_saved_results();
  for (size_t i = t.forward_ops; i < t.forward_ops + t.backward_ops; ++i) {
    const Op& op = t.graph.ops[i];
    Backward& entry = backward_ops.emplace_back();
    if (op.forward.valid()) entry.forward = op.forward.value;
    entry.dropped = facts.dropped[i];
    if (!op.outputs.empty()) entry.output = op.outputs[0];
    if (!op.forward.valid()) entry.first = op.inputs[0], entry.second = op.inputs[1];
  }
}

Nanoseconds StepBound::State::time_of_work(int32_t work) {
  const auto at = static_cast<size_t>(work);
  if (work_times.size() <= at) work_times.resize(tables.works.size(), 0);
  if (work_times[at] == 0) {
    const Price price = problem.cost.price(tables.works[at], problem.machine.device_types[type]);
    work_times[at] =
        std::max<Nanoseconds>(1, static_cast<Nanoseconds>(std::round(price.time.value * 1e9)));
  }
  return work_times[at];
}

Nanoseconds StepBound::State::time_of_traffic(int32_t traffic) {
  const auto at = static_cast<size_t>(traffic);
  if (traffic_times.size() <= at) traffic_times.resize(tables.traffics.size(), 0);
  if (traffic_times[at] == 0) {
    const double alone = time_alone(problem.machine, tables.traffics[at]).value * 1e9;
    traffic_times[at] = std::max<Nanoseconds>(1, static_cast<Nanoseconds>(alone * kRounding));
  }
  return traffic_times[at];
}

// Nanoseconds a byte of reducing, and of gathering what was shared out. Large traffic is cheapest,
// so that of all gradients together is no more than that of their buckets.
const std::pair<double, double>& StepBound::State::reduce_price(int32_t digits) {
  const auto at = static_cast<size_t>(digits);
  if (per_byte.size() <= at) per_byte.resize(at + 1, {-1, -1});
  if (per_byte[at].first < 0) {
    const Bytes all(static_cast<int64_t>(std::max(1.0, all_bytes)));
    const auto price = [&](Collective collective) {
      const int32_t traffic = tables.collective(collective, group, tables.digits(digits), all);
      return static_cast<double>(time_of_traffic(traffic)) / static_cast<double>(all.value);
    };
    per_byte[at] = {price(Collective::ReduceScatter), price(Collective::AllGather)};
    // The parts of an all-reduce may be cheaper together than apart.
    per_byte[at].second = std::min(
        per_byte[at].second, std::max(0.0, price(Collective::AllReduce) - per_byte[at].first));
  }
  return per_byte[at];
}

double StepBound::State::update_price() {
  if (update_per_element >= 0) return update_per_element;
  update_per_element = 0;
  const size_t first = training.forward_ops + training.backward_ops;
  for (size_t i = first; i < training.graph.ops.size(); ++i) {
    const Op& op = training.graph.ops[i];
    const bool master = op.inputs.size() > 2 && op.inputs[2].valid();
    const Work work = update_work(std::get<UpdateAttrs>(op.attrs).optimizer, all_elements,
                                  training.graph[op.inputs[0]].type.dtype,
                                  training.graph[op.inputs[1]].type.dtype, master);
    const double price = problem.cost.price(work, problem.machine.device_types[type]).time.value *
                         1e9 / all_elements;
    update_per_element = i == first ? price : std::min(update_per_element, price);
    constexpr size_t kEnough = 64;  // they are nearly all alike
    if (i - first > kEnough && training.graph.ops[i].attrs == training.graph.ops[i - 1].attrs)
      break;
  }
  return update_per_element;
}

void StepBound::State::use_group(const std::vector<DeviceId>& devices) {
  const int32_t id = tables.intern(devices);
  if (id == group) return;
  group = id;
  per_byte.clear();
  const size_t now = problem.machine[devices.front()].type;
  if (now == type) return;
  type = now;
  work_times.clear();
  update_per_element = -1;
  chosen_group = -1;
}

void StepBound::State::take(const Strategy& given) {
  strategy = &given;
  for (size_t i = 0; i < given.shardings.size(); ++i) {
    if (i < known.size() && known[i] == given.shardings[i]) continue;
    known.resize(std::max(known.size(), i + 1));
    known_ids.resize(known.size());
    known[i] = given.shardings[i];
    known_ids[i] = tables.intern(known[i]);
  }
  if (stages != given.stages || stage_of.empty()) {
    stages = given.stages;
    stage_of = stages_of_training(training, given);
    planned.clear();
    in_flight.clear();
  }
  if (planned != given.saved || again.before.empty()) {
    planned = given.saved;
    again = plan_recompute(training, given, stage_of, facts.roots);
    keeps_all = std::ranges::all_of(
        planned, [](MemoryAction action) { return action == MemoryAction::Keep; });
    recomputes = std::ranges::find(planned, MemoryAction::Recompute) != planned.end();
  }
}

const StepBound::State::Value* StepBound::State::find(TensorId tensor, int32_t layout) const {
  for (int32_t i = heads[tensor.index()]; i >= 0; i = values[static_cast<size_t>(i)].next)
    if (values[static_cast<size_t>(i)].layout == layout) return &values[static_cast<size_t>(i)];
  return nullptr;
}

StepBound::State::Value& StepBound::State::put(TensorId tensor, const Value& value) {
  int32_t* link = &heads[tensor.index()];
  while (*link >= 0) link = &values[static_cast<size_t>(*link)].next;
  *link = static_cast<int32_t>(values.size());
  values.push_back(value);
  values.back().next = -1;
  return values.back();
}

// As lowering does it: from the first value there is, in place where partial sums are combined.
const StepBound::State::Value& StepBound::State::value(TensorId tensor, int32_t layout) {
  if (const Value* there = find(tensor, layout)) return *there;
  const int32_t head = heads[tensor.index()];
  if (head < 0) return put(tensor, {.layout = layout});  // weights, data: there from the start
  Value now = values[static_cast<size_t>(head)];
  for (const MoveTemplate& move :
       tables.moves(training.graph[tensor].type, now.layout, group, layout, group)) {
    communicate = std::max(communicate, now.ready) + time_of_traffic(move.traffic);
    Value next = now;
    next.layout = move.layout;
    next.ready = communicate;
    if (move.in_place) {
      for (int32_t i = heads[tensor.index()]; i >= 0;) {
        Value& held = values[static_cast<size_t>(i)];
        i = held.next;
        if (held.buffer != now.buffer || held.layout != now.layout) continue;
        const int32_t link = held.next;
        held = next;
        held.next = link;
      }
    } else {
      next.buffer = buffers++;
      next.bytes = allocated(move.elements * facts.element_size[tensor.index()]).value;
    }
    now = next;
  }
  now.layout = layout;
  return put(tensor, now);
}

const StepBound::State::Steps& StepBound::State::steps_of(const OpTemplate& made) {
  const auto [at, fresh] = steps.try_emplace(&made);
  Steps& list = at->second;
  if (!fresh) return list;
  const auto add = [&](std::span<const ReadTemplate> reads) {
    uint32_t count = 0;
    for (const ReadTemplate& read : reads) {
      if (facts.origin[read.tensor.index()] != TrainingFacts::Origin::Made) continue;
      list.operands.push_back({read.tensor, read.want.layout});
      ++count;
    }
    return count;
  };
  list.reads = add(made.reads());
  list.gradients = add(made.gradient_reads());
  add(made.saved_reads());
  list.view_of_made = !made.reads().empty() &&
                      facts.origin[made.reads()[0].tensor.index()] == TrainingFacts::Origin::Made;
  const auto make = [&](std::span<const ResultTemplate> results) {
    for (const ResultTemplate& result : results)
      list.results.push_back({result.buffer.tensor, result.layout, result.update,
                              result.buffer.bytes.value, result.elements});
  };
  make(made.results());
  list.made = static_cast<uint32_t>(list.results.size());
  make(made.backward_results());
  return list;
}

void StepBound::State::forward(size_t op) {
  const OpTemplate& made = *chosen[op].made;
  const Steps& list = *chosen[op].steps;
  if (made.work < 0) {
    Value view;
    bool first = list.view_of_made;
    for (const Operand& read : list.forward()) {
      const Value& there = value(read.tensor, read.layout);
      if (first) view = there;
      first = false;
    }
    if (view.buffer < 0) view.buffer = buffers++;
    view.layout = list.results[0].layout;
    put(list.results[0].tensor, view);
    return;
  }
  Nanoseconds start = compute;
  for (const Operand& read : list.forward())
    start = std::max(start, value(read.tensor, read.layout).ready);
  compute = start + chosen[op].forward;
  Nanoseconds done = compute;
  if (made.coupling >= 0)
    done = communicate = std::max(communicate, compute) + time_of_traffic(made.coupling);
  for (const Made& result : list.makes())
    put(result.tensor,
        {.layout = result.layout, .buffer = buffers++, .ready = done, .bytes = result.bytes});
}

void StepBound::State::finish_term(const Made& term, Nanoseconds done) {
  const auto u = static_cast<size_t>(term.update);
  if (--terms_left[u] != 0) return;
  const int32_t digits = tables.partial_digits(term.layout);
  if (tables.members(digits) == 1) return;
  const auto& [scatter, gather] = reduce_price(digits);
  const Residency& residency = strategy->weights[u];
  // Shared-out gradients and weights are gathered later, if at all on this lane.
  const double price = residency.zero == 0 ? scatter + gather : scatter;
  const double bytes = static_cast<double>(term.elements * facts.updates[u].gradient_size);
  reduced = std::max(reduced, static_cast<double>(done)) + price * bytes;
}

void StepBound::State::backward(const Backward& op) {
  const Chosen& own = chosen[static_cast<size_t>(op.forward)];
  const OpTemplate& made = *own.made;
  const Steps& list = *own.steps;
  if (made.backward_work < 0) {
    Value view;
    bool first = true;
    for (const Operand& read : list.gradient()) {
      const Value& there = value(read.tensor, read.layout);
      if (first) view = there;
      first = false;
    }
    if (!op.output.valid()) return;
    view.layout = made.input_gradients()[0].layout;
    put(op.output, view);
    return;
  }
  Nanoseconds start = compute;
  for (const Operand& read : list.gradient())
    start = std::max(start, value(read.tensor, read.layout).ready);
  if (keeps_all)
    for (const Operand& read : list.saved())
      start = std::max(start, value(read.tensor, read.layout).ready);
  compute = start + own.backward;
  Nanoseconds done = compute;
  if (made.backward_coupling >= 0)
    done = communicate = std::max(communicate, compute) + time_of_traffic(made.backward_coupling);
  for (const Made& result : list.backward_makes()) {
    put(result.tensor,
        {.layout = result.layout, .buffer = buffers++, .ready = done, .bytes = result.bytes});
    if (result.update >= 0) finish_term(result, done);
  }
}

void StepBound::State::accumulate(const Backward& op) {
  const TensorId inputs[] = {op.first, op.second};
  Value terms[2];
  for (size_t i = 0; i < 2; ++i) {
    const int32_t head = heads[inputs[i].index()];
    if (head < 0) return;
    terms[i] = values[static_cast<size_t>(head)];
  }
  if (terms[0].layout != terms[1].layout) {
    const int32_t layout = tables.settled(terms[0].layout);
    for (size_t i = 0; i < 2; ++i) terms[i] = value(inputs[i], layout);
  }
  compute = std::max({compute, terms[0].ready, terms[1].ready}) +
            time_of_work(tables.sum_work(terms[0].bytes));
  put(op.output,
      {.layout = terms[0].layout, .buffer = buffers++, .ready = compute, .bytes = terms[0].bytes});
}

// The templates and prices of ops that are split otherwise than last time.
void StepBound::State::choose() {
  if (chosen_group != group || chosen.empty()) {
    chosen.assign(training.forward_ops, {});
    chosen_group = group;
    plain_work = 0;
  }
  for (size_t i = 0; i < training.forward_ops; ++i) {
    Chosen& op = chosen[i];
    const int32_t sharding = known_ids[static_cast<size_t>(strategy->ops[i])];
    if (op.sharding == sharding) continue;
    // Throws if it is not a sharding of the op: what is known of it stays as it was.
    const OpTemplate& made = tables.op(OpId(i), sharding, group);
    plain_work -= op.forward + op.backward;
    op.sharding = sharding;
    op.made = &made;
    op.steps = &steps_of(made);
    op.forward = op.made->work >= 0 ? time_of_work(op.made->work) : 0;
    op.backward = op.made->backward_work >= 0 ? time_of_work(op.made->backward_work) : 0;
    plain_work += op.forward + op.backward;
    for (int32_t u : updates_of[i]) {
      const auto input = static_cast<size_t>(facts.first_use[static_cast<size_t>(u)].second);
      update_elements[static_cast<size_t>(u)] =
          static_cast<double>(op.made->inputs()[input].elements);
      update_parts[static_cast<size_t>(u)] = static_cast<double>(
          tables.members(tables.partial_digits(op.made->input_gradients()[input].layout)));
    }
  }
}

// What the devices spend on updating their weights.
Nanoseconds StepBound::State::updates() {
  double elements = 0;
  for (size_t u = 0; u < facts.updates.size(); ++u) {
    const Residency& residency = strategy->weights[u];
    if (residency.host_update) continue;
    elements += residency.zero > 0 ? update_elements[u] / update_parts[u] : update_elements[u];
  }
  return static_cast<Nanoseconds>(elements * update_price() * kRounding);
}

Nanoseconds StepBound::State::one_group(Nanoseconds enough) {
  use_group(strategy->groups[0]);
  choose();
  const int64_t batches = strategy->micro_batches;
  const Nanoseconds update = updates();
  Nanoseconds left = plain_work;  // of the compute lane, wherever the walk is
  if (recomputes)
    for (const auto& list : again.before)
      for (OpId op : list) left += chosen[op.index()].forward;
  const auto bound = [&] { return (compute + left) * batches + update; };
  compute = communicate = 0;
  if (bound() > enough) return bound();
  values.clear();
  heads.assign(training.graph.tensors.size(), -1);
  terms_left = terms_of;
  buffers = 0;
  reduced = 0;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    forward(i);
    left -= chosen[i].forward;
    if (bound() > enough) return bound();
  }
  for (size_t i = 0; i < backward_ops.size(); ++i) {
    const Backward& op = backward_ops[i];
    // Operands of what is computed again are there; their redistributions are left out.
    if (recomputes)
      for (OpId op_again : again.before[training.forward_ops + i]) {
        compute += chosen[op_again.index()].forward;
        left -= chosen[op_again.index()].forward;
      }
    if (op.forward >= 0) {
      backward(op);
      left -= chosen[static_cast<size_t>(op.forward)].backward;
    } else if (!op.dropped) {
      accumulate(op);
    }
    if (bound() > enough) return bound();
  }
  // Gradients of the last micro-batch are reduced while it and what follows is computed.
  const auto tail = static_cast<Nanoseconds>(reduced * kRounding);
  return std::max(compute * batches + update, compute * (batches - 1) + tail);
}

Nanoseconds StepBound::State::several_groups() {
  const size_t count = strategy->stages.size();
  std::vector<Nanoseconds> ahead(count, 0), back(count, 0);  // by stage, of one micro-batch
  std::vector<int32_t> stages_of_group(strategy->groups.size(), 0);
  for (size_t s = 0; s < count; ++s) {
    const Stage& stage = strategy->stages[s];
    ++stages_of_group[static_cast<size_t>(stage.group)];
    if (stage.group != stage.backward_group) return 0;
    use_group(strategy->groups[static_cast<size_t>(stage.group)]);
    for (size_t i = stage.first; i < stage.last; ++i) {
      const OpTemplate& made = made_of(i);
      if (made.work >= 0) ahead[s] += time_of_work(made.work);
      if (made.backward_work >= 0) back[s] += time_of_work(made.backward_work);
    }
  }
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i)
    for (OpId op : again.before[i]) {
      const Stage& stage = strategy->stages[static_cast<size_t>(stage_of[i])];
      use_group(strategy->groups[static_cast<size_t>(stage.group)]);
      const OpTemplate& made = made_of(op.index());
      if (made.work >= 0) back[static_cast<size_t>(stage_of[i])] += time_of_work(made.work);
    }
  Nanoseconds best = 0, before = 0;
  std::vector<Nanoseconds> busy(strategy->groups.size(), 0);
  for (size_t s = 0; s < count; ++s) {
    const auto g = static_cast<size_t>(strategy->stages[s].group);
    busy[g] += (ahead[s] + back[s]) * strategy->micro_batches;
    best = std::max(best, busy[g] + (stages_of_group[g] == 1 ? before : 0));
    before += ahead[s] + back[s];
  }
  return best;
}

StepBound::StepBound(const Problem& problem, const TrainingGraph& training)
    : state_(std::make_unique<State>(problem, training)) {}
StepBound::~StepBound() = default;
StepBound::StepBound(StepBound&&) noexcept = default;

Nanoseconds StepBound::operator()(const Strategy& strategy, Nanoseconds enough) {
  // Measured prices are not those of works; paging has tasks of its own.
  if (state_->problem.reprice || strategy.virtual_memory) return 0;
  state_->take(strategy);
  const bool plain = strategy.stages.size() == 1 && strategy.groups.size() == 1;
  return plain ? state_->one_group(enough) : state_->several_groups();
}

bool StepBound::too_large(const Strategy& strategy) {
  if (strategy.virtual_memory) return false;
  state_->take(strategy);
  return state_->too_large();
}

}  // namespace windlass
