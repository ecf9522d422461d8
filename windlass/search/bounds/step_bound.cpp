#include "windlass/search/bounds/step_bound.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/graph/op_info.h"
#include "windlass/search/bounds/step_bound_state.h"

namespace windlass {
namespace {

// The simulator gives up on steps that take somewhat longer.
constexpr Nanoseconds kLongest = Nanoseconds{1} << 49;

bool walks(const Strategy& strategy) {
  return !strategy.virtual_memory && !strategy.in_turn &&
         (std::ranges::none_of(strategy.shardings, unequal) ||
          std::ranges::none_of(strategy.ops, [&](int32_t sharding) {
            return unequal(strategy.shardings[static_cast<size_t>(sharding)]);
          }));
}

}  // namespace

StepBound::State::State(const Problem& p, const TrainingGraph& t)
    : problem(p), training(t), facts(t), tables(t, facts, p.machine), rates(p.machine) {
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
  list_weights();
  for (size_t i = t.forward_ops; i < t.forward_ops + t.backward_ops; ++i) {
    const Op& op = t.graph.ops[i];
    Backward& entry = backward_ops.emplace_back();
    if (op.forward.valid()) entry.forward = op.forward.value;
    entry.dropped = facts.dropped[i];
    if (!op.outputs.empty()) entry.output = op.outputs[0];
    if (!op.forward.valid()) entry.first = op.inputs[0], entry.second = op.inputs[1];
  }
  list_types();
  list_windows();
  list_backward_of();
}

Nanoseconds StepBound::State::duration_of(const Price& price) {
  return std::max<Nanoseconds>(1, static_cast<Nanoseconds>(std::round(price.time.value * 1e9)));
}

Nanoseconds StepBound::State::time_of_work(int32_t work) {
  const auto at = static_cast<size_t>(work);
  if (work_times.size() <= at) work_times.resize(tables.works.size(), 0);
  if (work_times[at] == 0) {
    const Price price = problem.cost.price(tables.works[at], problem.machine.device_types[type]);
    work_times[at] = duration_of(price);
    most_workspace = std::max(most_workspace, price.workspace.value);
  }
  return work_times[at];
}

// Of the compute lane, which waits for what pieces exchange. No work: none.
Nanoseconds StepBound::State::time_of_op(int32_t work, const ExchangeTemplate& exchange) {
  if (work < 0) return 0;
  const Nanoseconds end = time_of_work(work);
  if (!exchange.needed()) return end;
  return time_of_work(exchange.begin) + flow_of(exchange.traffic)->alone + end;
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
      const double alone =
          time_alone(problem.machine, tables.traffics[static_cast<size_t>(traffic)]).value * 1e9;
      return alone * kRounding / static_cast<double>(all.value);
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
  traffic_index.clear();
  host_parts.clear();
  const Device& first = problem.machine[devices.front()];
  alike = !problem.machine.device_types[first.type].copies_itself;
  members.clear();
  for (DeviceId member : devices) {
    const Device& device = problem.machine[member];
    alike = alike && device.type == first.type && device.limit == first.limit;
    members.push_back(static_cast<int32_t>(members.size()));
  }
  std::map<NodeId, size_t> on_host;
  for (DeviceId member : devices) ++on_host[problem.machine[member].node];
  hosts_alike = std::ranges::all_of(
      on_host, [&](const auto& entry) { return entry.second == on_host[first.node]; });
  host_update_times.clear();
  const size_t now = problem.machine[devices.front()].type;
  if (now == type) return;
  type = now;
  work_times.clear();
  update_times.clear();
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

void StepBound::State::list_types() {
  std::map<std::pair<Shape, DType>, uint32_t> types;
  for (const Tensor& tensor : training.graph.tensors)
    type_of.push_back(
        types.emplace(std::pair(tensor.type.shape, tensor.type.dtype), types.size()).first->second);
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
  const int64_t micro_batches = strategy->micro_batches;
  Nanoseconds update = updates();
  Nanoseconds left = plain_work;  // of the compute lane, wherever the walk is
  if (recomputes)
    for (const auto& list : again.before)
      for (OpId op : list) left += chosen[op.index()]->forward;
  const auto bound = [&] { return (compute + left) * micro_batches + update; };
  compute = 0;
  if (bound() > enough) return bound();
  find_delays((enough - update) / micro_batches - left);
  left += all_delays.forward + (keeps_all ? all_delays.backward : 0);
  compute = 0;
  if (bound() > enough) return bound();
  begin_walk();
  value_buffers = 0;
  moved_bytes = 0;
  reduced = 0;
  possible = true;
  plain = begin_plain();
  if (plain) {
    // Without what streams weights.
    if (const Nanoseconds least = walk_gradients(); least > enough) return least;
    update = std::max(update, closing_work);
    begin_walk();
    begin_updates();
  }
  for (size_t i = 0, w = 0; i < training.forward_ops; ++i) {
    if (w < windows.size() && i == windows[w].first) left -= delays[w++].forward;
    forward(i);
    left -= chosen[i]->forward;
    if (bound() > enough) return bound();
  }
  turn_back();
  for (size_t i = 0, w = windows.size(); i < backward_ops.size(); ++i) {
    const Backward& op = backward_ops[i];
    for (; keeps_all && w > 0 && windows[w - 1].back_first <= i; --w)
      left -= delays[w - 1].backward;
    // Operands of what is computed again are there; their redistributions are left out.
    if (recomputes)
      for (OpId op_again : again.before[training.forward_ops + i]) {
        work(chosen[op_again.index()]->forward);
        left -= chosen[op_again.index()]->forward;
      }
    if (op.forward >= 0) {
      backward(op);
      left -= chosen[static_cast<size_t>(op.forward)]->backward;
    } else if (!op.dropped) {
      accumulate(op);
    }
    if (bound() > enough) return bound();
  }
  if (plain) {
    finish_plain();
    const Nanoseconds least = tasks.end();
    exact = least <= enough && least < kLongest && possible && fits_surely();
    return exact ? tasks.run(rates) : least;
  }
  // Gradients of the last micro-batch are reduced while it and what follows is computed.
  const auto tail = static_cast<Nanoseconds>(reduced * kRounding);
  return std::max(compute * micro_batches + update, compute * (micro_batches - 1) + tail);
}

StepBound::StepBound(const Problem& problem, const TrainingGraph& training)
    : state_(std::make_unique<State>(problem, training)) {}
StepBound::~StepBound() = default;
StepBound::StepBound(StepBound&&) noexcept = default;

Nanoseconds StepBound::operator()(const Strategy& strategy, Nanoseconds enough) {
  // Measured prices are not those of works; paging and packs have tasks of their own, copies in
  // turn have lanes of their own, unequal parts several teams, unequal micro-batches several walks.
  state_->exact = false;
  if (state_->problem.reprice || strategy.packs || state_->training.unequal || !walks(strategy))
    return 0;
  state_->take(strategy);
  state_->trim_choices();
  const bool one_group = strategy.stages.size() == 1 && strategy.groups.size() == 1;
  return one_group ? state_->one_group(enough) : state_->several_groups();
}

bool StepBound::exact() const { return state_->exact; }

bool StepBound::too_large(const Strategy& strategy) {
  if (state_->training.unequal || strategy.packs || !walks(strategy)) return false;
  state_->take(strategy);
  return state_->too_large(true);
}

bool StepBound::never_fits(const Strategy& strategy) {
  if (state_->training.unequal || strategy.packs || !walks(strategy)) return false;
  state_->take(strategy);
  return state_->too_large(false);
}

}  // namespace windlass
