// Gradients of weights and their updates.

#include <algorithm>

#include "windlass/plan/checker.h"

namespace windlass {

bool Checker::is_gradient(BufferId id) const {
  const Buffer& buffer = graph_[id];
  if (buffer.kind == BufferKind::WeightGradient) return true;
  return buffer.kind == BufferKind::Communication &&
         !facts_.updates_of[buffer.tensor.index()].empty();
}

// On the host, gradients go by the name of their weight.
bool Checker::belongs(BufferId id, int32_t update) const {
  const TensorId tensor = graph_[id].tensor;
  const auto& updates = facts_.updates_of[tensor.index()];
  return facts_.update_of[tensor.index()] == update ||
         std::ranges::find(updates, update) != updates.end();
}

int32_t Checker::weight_layout(int32_t update, int32_t group) {
  const auto [entry, fresh] = weight_layouts_.try_emplace({update, group}, -1);
  if (!fresh) return entry->second;
  for (const auto& [op, input] : facts_.readers[static_cast<size_t>(update)])
    if (entry->second < 0 && group_of(op, true) == group)
      entry->second = layouts_.of(op).inputs[input];
  return entry->second;
}

// Of the groups that make its gradient, the one that a team belongs to.
int32_t Checker::group_of_team(TeamId team, int32_t update) const {
  for (TensorId term : facts_.terms[static_cast<size_t>(update)]) {
    const OpId producer = training_.graph[term].producer;
    const int32_t group = producer.valid() ? group_of(producer, true) : 0;
    const auto& teams = teams_[static_cast<size_t>(group)];
    if (std::ranges::find(teams, team) != teams.end()) return group;
  }
  return -1;
}

void Checker::add_to_sum(TaskId id, TensorId term, int32_t layout, int32_t group) {
  const int32_t micro_batch = graph_[id].micro_batch;
  const auto& updates = facts_.updates_of[term.index()];
  for (const Use& use : graph_.uses_of(id)) {
    const Buffer& buffer = graph_[use.buffer];
    const bool mine =
        use.write && buffer.kind == BufferKind::WeightGradient && buffer.memory == memory_of(id) &&
        std::ranges::any_of(updates, [&](int32_t u) { return belongs(use.buffer, u); });
    if (!mine) continue;
    Held& held = held_[use.buffer.index()];
    if (held.there && (held.layout != layout || held.group != group)) continue;
    operands_.push_back(use.buffer);
    if (buffer.micro_batch >= 0 && buffer.micro_batch != micro_batch)
      complain("{}: adds to {}", name(id), name(use.buffer));
    if (held.reduced) complain("{}: adds to {} after its reduction", name(id), name(use.buffer));
    if (const int64_t size = layouts_.bytes(training_.graph[term].type, layout);
        buffer.bytes.value != size)
      complain("{}: {} has {} bytes, \"{}\" as {} takes {}", name(id), name(use.buffer),
               buffer.bytes.value, name(term), format_layout(layouts_[layout]), size);
    const uint64_t before = held.there ? held.terms : 0;
    take(held, {.tensor = term, .layout = layout, .group = group});
    held.terms = before + term_hash(term, micro_batch);
    return;
  }
  complain("{}: does not add \"{}\" to the gradient of its weight", name(id), name(term));
}

// A term that others read too is added by a task of its own.
void Checker::add_term(TaskId id) {
  operands_.clear();
  for (const Use& use : graph_.uses_of(id)) {
    if (use.write || !graph_[id].tensor.valid()) continue;
    Held& held = held_[use.buffer.index()];
    for (int32_t u : facts_.updates_of[graph_[id].tensor.index()]) {
      if (update_op(u).inputs[1] != graph_[id].tensor) continue;
      // A sum that came from elsewhere joins the one at home.
      if (graph_[use.buffer].kind == BufferKind::Communication && belongs(use.buffer, u)) {
        const auto uses = graph_.uses_of(id);
        const auto sum = std::ranges::find(uses, UseKind::Sum, &Use::kind);
        if (sum == uses.end() || !belongs(sum->buffer, u)) continue;
        held_[sum->buffer.index()].terms += held.terms;
        return;
      }
      for (TensorId term : facts_.terms[static_cast<size_t>(u)]) {
        if (facts_.direct[term.index()] || !holds(use.buffer, term, graph_[id].micro_batch))
          continue;
        const auto seen = see_as(held, use.buffer, term, held.group);
        if (!seen || seen->steps != 0 || seen->layout < 0) continue;
        return add_to_sum(id, term, seen->layout, seen->group);
      }
    }
  }
  complain("{}: adds no term of the gradient of a weight", name(id));
}

void Checker::check_traffic(TaskId id, Collective collective, int32_t group,
                            const std::vector<MemberDigit>& digits, int64_t bytes,
                            const char* what) {
  const auto [entry, fresh] = traffic_.try_emplace({collective, group, digits, bytes});
  if (fresh) {
    // Members that differ in these digits only belong together.
    std::map<int64_t, DeviceGroup> groups;
    const auto& devices = strategy_.groups[static_cast<size_t>(group)];
    for (size_t m = 0; m < devices.size(); ++m) {
      auto rest = static_cast<int64_t>(m);
      for (const MemberDigit& digit : digits)
        rest -= static_cast<int64_t>(m) / digit.place % digit.parts * digit.place;
      groups[rest].push_back(devices[m]);
    }
    std::vector<DeviceGroup> list;
    for (const auto& [rest, members] : groups) list.push_back(members);
    entry->second = plan_collective(machine_, collective, list, Bytes(bytes));
  }
  const Traffic& expected = entry->second;
  const Traffic& found = graph_.traffics[static_cast<size_t>(graph_[id].price)];
  const bool same = expected.volume == found.volume && expected.latency == found.latency &&
                    std::ranges::equal(expected.loads, found.loads, [](auto& a, auto& b) {
                      return a.direction == b.direction && a.bytes == b.bytes;
                    });
  if (!same)
    complain("{}: {} should send {} bytes from each member, it sends {}", name(id), what,
             expected.volume.value, found.volume.value);
}

void Checker::reduce(TaskId id) {
  const auto uses = graph_.uses_of(id);
  const bool shares = std::ranges::any_of(uses, [](const Use& use) { return !use.write; });
  int32_t group = -1, zero = 0;
  std::vector<MemberDigit> digits;
  int64_t bytes = 0;
  std::set<BufferId> seen, filled;
  for (const Use& use : uses) {
    const Buffer& buffer = graph_[use.buffer];
    if (shares && use.write) continue;
    Held& held = held_[use.buffer.index()];
    const auto& updates = facts_.updates_of[buffer.tensor.index()];
    if (buffer.kind != BufferKind::WeightGradient || updates.empty() || !held.there ||
        held.layout < 0) {
      complain("{}: reduces {}, which is no gradient of a weight", name(id), name(use.buffer));
      continue;
    }
    if (!seen.insert(use.buffer).second)
      complain("{}: reduces {} twice", name(id), name(use.buffer));
    if (!layouts_.partial(held.layout) || held.reduced)
      complain("{}: reduces {}, which holds no partial sums", name(id), name(use.buffer));
    const auto here = layouts_.digits(held.layout, true);
    // 1: everybody gets its share of the sum only.
    const int32_t here_zero = !here.empty() && here == shared_over(updates[0]) ? 1 : 0;
    if (group < 0) {
      group = held.group;
      digits = here;
      zero = here_zero;
    } else if (group != held.group || digits != here || zero != here_zero) {
      complain("{}: reduces {} together with others that lie differently", name(id),
               name(use.buffer));
    }
    if (buffer.memory == memory_of(id))
      bytes += layouts_.elements(shape(held.tensor), held.layout) *
               element_bytes(training_.graph[update_op(updates[0]).inputs[1]].type.dtype);
    const int32_t whole = layouts_.settled(held.layout);
    if (!shares) {
      held.layout = whole;
      held.reduced = true;
      continue;
    }
    const Use* shard = nullptr;
    for (const Use& other : uses) {
      const bool fits =
          other.write && graph_[other.buffer].memory == buffer.memory &&
          std::ranges::any_of(updates, [&](int32_t u) { return belongs(other.buffer, u); });
      if (fits && (!shard || !filled.contains(other.buffer))) shard = &other;
    }
    if (!shard) {
      complain("{}: has no share to reduce {} to", name(id), name(use.buffer));
      continue;
    }
    filled.insert(shard->buffer);
    Held& target = held_[shard->buffer.index()];
    const int64_t parts = layouts_.partial_parts(held.layout);
    if (graph_[shard->buffer].bytes.value * parts < buffer.bytes.value)
      complain("{}: {} is less than one part of {} of {}", name(id), name(shard->buffer), parts,
               name(use.buffer));
    const uint64_t before = target.there ? target.terms : 0;
    take(target, {.tensor = held.tensor, .layout = whole, .group = held.group});
    target.terms = before + held.terms;
    target.reduced = true;
  }
  if (group < 0) return;
  const auto& teams = teams_[static_cast<size_t>(group)];
  for (TeamId team : teams)
    for (BufferId b : seen)
      if (graph_[b].memory == memory_of(id) && team != team_of(id)) {
        const bool twin = std::ranges::any_of(seen, [&](BufferId other) {
          return graph_[other].memory == graph_[team].memory &&
                 graph_[other].tensor == graph_[b].tensor;
        });
        if (!twin) complain("{}: {} has no part in it", name(id), graph_[graph_[team].memory].name);
      }
  check_traffic(id, zero >= 1 ? Collective::ReduceScatter : Collective::AllReduce, group, digits,
                bytes, "a reduction of these gradients");
}

std::vector<MemberDigit> Checker::shared_over(int32_t update) const {
  if (strategy_.weights[static_cast<size_t>(update)].zero == 0) return {};
  const auto& readers = facts_.readers[static_cast<size_t>(update)];
  if (readers.empty()) return {};
  const auto& [op, input] = readers.front();
  return layouts_.digits(layouts_.of(op).input_gradients[input], true);
}

int64_t Checker::share_parts(int32_t update) const {
  int64_t parts = 1;
  for (const MemberDigit& digit : shared_over(update)) parts *= digit.parts;
  return parts;
}

Checker::Held::Version Checker::after_update(int32_t update) {
  const int zero = strategy_.weights[static_cast<size_t>(update)].zero;
  const bool share = (zero == 1 || zero == 2) && share_parts(update) > 1;
  return share ? Held::Version::Share : Held::Version::New;
}

// Teams share the lane of their host: an update there is for the team that sent the gradients.
TeamId Checker::updating_team(TaskId id) const {
  if (graph_[id].kind == TaskKind::HostUpdate)
    for (const Use& use : graph_.uses_of(id))
      if (const TeamId sender = held_[use.buffer.index()].sender; sender.valid()) return sender;
  return team_of(id);
}

void Checker::check_states(TaskId id, int32_t update, TeamId team) {
  const Op& op = update_op(update);
  int64_t each = 0;
  for (size_t i = 2; i < op.inputs.size(); ++i)
    if (op.inputs[i].valid()) each += element_bytes(training_.graph[op.inputs[i]].type.dtype);
  const int32_t group = group_of_team(team, update);
  const int32_t layout = group < 0 ? -1 : weight_layout(update, group);
  if (each == 0 || layout < 0) return;
  const int64_t parts = share_parts(update);
  const int64_t elements = layouts_.elements(shape(op.inputs[0]), layout);
  const int64_t least = (elements + parts - 1) / parts * each;
  for (const Use& use : graph_.uses_of(id)) {
    const Buffer& buffer = graph_[use.buffer];
    if (!use.write || buffer.kind != BufferKind::OptimizerState || buffer.tensor != op.inputs[0])
      continue;
    if (buffer.bytes.value < least)
      complain("{}: {} has {} bytes, the optimizer needs {}", name(id), name(use.buffer),
               buffer.bytes.value, least);
    return;
  }
  complain("{}: has no optimizer state for \"{}\"", name(id), name_of_weight(update));
}

// What the host updates lies there, be it for good or on its way back to a device.
void Checker::check_host_weight(TaskId id, int32_t update, TeamId team) {
  const TensorId weight = update_op(update).inputs[0];
  const int32_t group = group_of_team(team, update);
  const int32_t layout = group < 0 ? -1 : weight_layout(update, group);
  const int64_t elements = layout < 0 ? 0 : layouts_.elements(shape(weight), layout);
  const int64_t parts = share_parts(update);
  const int64_t least =
      (elements + parts - 1) / parts * element_bytes(training_.graph[weight].type.dtype);
  for (const Use& use : graph_.uses_of(id)) {
    const Buffer& buffer = graph_[use.buffer];
    if (!use.write || buffer.kind != BufferKind::Weight || buffer.tensor != weight) continue;
    if (buffer.bytes.value < least)
      complain("{}: {} has {} bytes, the weight takes {}", name(id), name(use.buffer),
               buffer.bytes.value, least);
    return;
  }
  complain("{}: does not write \"{}\"", name(id), name_of_weight(update));
}

bool Checker::writes(TaskId id, BufferId buffer) const {
  return std::ranges::any_of(graph_.uses_of(id),
                             [&](const Use& use) { return use.write && use.buffer == buffer; });
}

void Checker::update(TaskId id) {
  const bool host = graph_[id].kind == TaskKind::HostUpdate;
  const TeamId team = updating_team(id);
  std::vector<int32_t> updates;
  std::set<BufferId> gradients;
  for (const Use& use : graph_.uses_of(id)) {
    const Buffer& buffer = graph_[use.buffer];
    const int32_t u = facts_.update_of[buffer.tensor.index()];
    Held& held = held_[use.buffer.index()];
    if (is_gradient(use.buffer) && !use.write) {
      gradients.insert(use.buffer);
      if (host && u >= 0) updates.push_back(u);
    } else if (buffer.kind == BufferKind::Weight && use.write && u >= 0) {
      if (held.version != Held::Version::Old)
        complain("{}: \"{}\" is updated already", name(id), name_of_weight(u));
      // The host rounds a new weight from its master copy.
      const bool rounds = host && update_op(u).inputs.size() > 2 && update_op(u).inputs[2].valid();
      if (!held.there && rounds) take(held, {.tensor = buffer.tensor});
      if (!held.there) complain("{}: updates {}, which is empty", name(id), name(use.buffer));
      held.version = host ? Held::Version::New : after_update(u);
      if (!host) updates.push_back(u);
    } else if (buffer.kind == BufferKind::OptimizerState) {
      if (!held.there) complain("{}: {} is empty", name(id), name(use.buffer));
    } else {
      complain("{}: uses {}, which is none of its operands", name(id), name(use.buffer));
    }
  }
  std::ranges::sort(updates);
  updates.erase(std::unique(updates.begin(), updates.end()), updates.end());
  if (updates.empty()) return complain("{}: updates no weight", name(id));
  uint64_t wanted = 0, found = 0;
  for (BufferId b : gradients) {
    Held& held = held_[b.index()];
    found += held.terms;
    const auto mine = std::ranges::find_if(updates, [&](int32_t u) { return belongs(b, u); });
    if (mine == updates.end()) {
      complain("{}: reads {}, of none of its weights", name(id), name(b));
      continue;
    }
    const int32_t group = group_of_team(team, *mine);
    const int32_t layout = group < 0 ? -1 : weight_layout(*mine, group);
    if (held.steps > 0 && layout >= 0 && !settle(held, b, layout, group))
      complain("{}: {}", name(id), reason_);
    if (held.steps != 0 || held.layout < 0) continue;
    const Shape& sizes = shape(update_op(*mine).inputs[0]);
    if (layouts_.partial(held.layout))
      complain("{}: reads {} before its partial sums are reduced", name(id), name(b));
    else if (layout >= 0 && !layouts_.fits(sizes, held.layout, layout, members(group)))
      complain("{}: {} lies as {}, its weight as {}", name(id), name(b),
               format_layout(layouts_[held.layout]), format_layout(layouts_[layout]));
  }
  for (int32_t u : updates) {
    wanted += expected_terms_[static_cast<size_t>(u)];
    updated_[static_cast<size_t>(u)].emplace_back(team, id);
    check_states(id, u, team);
    if (host) check_host_weight(id, u, team);
  }
  if (wanted == found) return;
  for (int32_t u : updates) {
    uint64_t sum = 0;
    for (BufferId b : gradients)
      if (belongs(b, u)) sum += held_[b.index()].terms;
    if (sum != expected_terms_[static_cast<size_t>(u)] || updates.size() == 1)
      complain("{}: its gradient of \"{}\" is not the sum of every term of every micro-batch, once",
               name(id), name_of_weight(u));
  }
}

}  // namespace windlass
