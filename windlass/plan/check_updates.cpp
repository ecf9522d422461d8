// Updates of weights, and what must hold at the end of the step.

#include <algorithm>

#include "windlass/plan/checker.h"

namespace windlass {

// Digits over which ZeRO shares out a weight: those over which its gradient is partial where it is
// used first. Without any, nobody shares it.
int32_t Checker::shared_over(size_t update) {
  int32_t& known = shared_[update];
  if (known >= 0) return known;
  known = 0;
  if (strategy_.weights[update].zero == 0) return known;
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const auto& inputs = training_.graph.ops[i].inputs;
    const auto found = std::ranges::find(inputs, update_op(update).inputs[0]);
    if (found == inputs.end()) continue;
    const auto input = static_cast<size_t>(found - inputs.begin());
    known = layouts_.partial_digits(layouts_.input_gradient(OpId(i), input));
    // A host holds all of a weight that rests there: who shares its update is on the same one.
    if (strategy_.weights[update].host)
      known = layouts_.intern(digits_within_hosts(machine_, devices(group_of(OpId(i))),
                                                  layouts_.digits(known),
                                                  kinds_[static_cast<size_t>(group_of(OpId(i)))]));
    break;
  }
  return known;
}

// Whether all that share with one of these members are among them and on its node: together they
// write all of what its host holds.
bool Checker::on_one_host(int32_t group, const std::vector<int64_t>& members, int32_t share) const {
  const auto node = [&](int64_t m) {
    return machine_[devices(group)[static_cast<size_t>(m)]].node;
  };
  for (int64_t m : members)
    for (int64_t peer : peers_of(layouts_.digits(share), m))
      if (node(peer) != node(m) || !std::ranges::binary_search(members, peer)) return false;
  return true;
}

// A host holds each different part of its members, or share of it, once.
int64_t Checker::parts_on_host(TeamId team, int32_t group, int32_t layout, int32_t share) {
  const auto [entry, fresh] = parts_on_host_.try_emplace({team, group, layout, share}, 0);
  if (!fresh) return entry->second;
  const auto& digits = layouts_.digits(share);
  std::map<NodeId, std::set<std::pair<int64_t, int64_t>>> different;
  for (int64_t m : members(team, group)) {
    const auto peers = peers_of(digits, m);
    different[machine_[devices(group)[static_cast<size_t>(m)]].node].emplace(
        digits_of_kind(layouts_[layout], m, Digit::Kind::Axis) +
            digits_of_kind(layouts_[layout], m, Digit::Kind::Partial),
        std::ranges::find(peers, m) - peers.begin());
  }
  for (const auto& [node, parts] : different)
    entry->second = std::max(entry->second, static_cast<int64_t>(parts.size()));
  return entry->second;
}

void Checker::check_host_bytes(TaskId id, BufferId buffer) {
  const int64_t most = parts_on_host(holder(buffer), group_of(buffer),
                                     layout_id(graph_[buffer].layout), share_of(buffer));
  const int64_t expected = most * part_bytes(buffer);
  if (graph_[buffer].bytes.value != expected)
    complain("{}: {} has {} bytes, {} different parts take {}", name(id), name(buffer),
             graph_[buffer].bytes.value, most, expected);
}

void Checker::update(TaskId id) {
  const int32_t group = group_id(graph_[id].group);
  std::map<uint32_t, std::vector<const Use*>> updates;
  for (const Use& use : graph_.uses_of(id))
    if (use.kind != UseKind::Squares) updates[use.index].push_back(&use);
  if (group < 0 || graph_[id].micro_batch >= 0 || updates.empty() ||
      updates.rbegin()->first >= updated_.size())
    return complain("{}: updates no weight of its group", name(id));
  for (const auto& [u, uses] : updates) update_one(id, u, uses);
  // Teams share the lane of their host: whose update it is, its operands say.
  const bool host = graph_[id].kind == TaskKind::HostUpdate;
  check_norm(id, host ? holder(updates.begin()->second[0]->buffer) : team_of(id));
}

uint64_t Checker::whole_gradient(size_t update) const {
  uint64_t all = 0;
  for (int32_t m = 0; m < strategy_.micro_batches; ++m)
    all += content(update_op(update).inputs[1], m);
  return all;
}

// Squares of gradients that are complete, in the shares that their weights are updated in.
void Checker::add_squares(TaskId id) {
  const Task& task = graph_[id];
  const int32_t group = group_id(task.group);
  const auto uses = graph_.uses_of(id);
  const auto target = std::ranges::find(uses, UseKind::Squares, &Use::kind);
  if (group < 0 || target == uses.end() || !training_.squares.valid() || task.micro_batch >= 0 ||
      graph_[target->buffer].tensor != training_.squares || graph_.lanes_of(id).size() != 1)
    return complain("{}: is no norm of gradients", name(id));
  const bool host = on_host(target->buffer);
  const TeamId team = holder(target->buffer);
  if (!host && !runs_on(id, group)) return;
  Held& sum = held(target->buffer);
  const bool scattered =
      layouts_[sum.layout] ==
      layout_from({{.kind = Digit::Kind::Partial, .parts = static_cast<int32_t>(members(group))}});
  if (!target->write || target->adds != sum.there || target->view >= 0 || !scattered ||
      sum.share != 0 || target->index != 0 || group_of(target->buffer) != group ||
      (!host && team != team_of(id)))
    complain("{}: {} is not for the squares of all members", name(id), name(target->buffer));
  if (!sum.there) sum.content = 0;
  sum.there = true;
  if (host) check_host_bytes(id, target->buffer);
  std::set<uint32_t> found;
  for (const Use& use : uses) {
    if (&use == &*target) continue;
    const bool known = use.kind == UseKind::Gradient && use.index < updated_.size() &&
                       found.insert(use.index).second && !use.write && use.view < 0;
    if (!known || on_host(use.buffer) != host || holder(use.buffer) != team ||
        group_of(use.buffer) != group) {
      complain("{}: {} is no gradient there", name(id), name(use.buffer));
      continue;
    }
    const std::optional<Seen> seen = see(id, use);
    if (!seen) continue;
    const Held& gradient = seen->held;
    const int32_t share = shared_over(use.index);
    const bool right = in(task.how, set_ids_) && set_ids_[static_cast<size_t>(task.how)] == share &&
                       (gradient.share == 0 || gradient.share == share);
    if (!right || gradient.open || gradient.bits != 0 || layouts_.partial(gradient.layout) ||
        gradient.content != whole_gradient(use.index))
      complain("{}: {} is not the whole gradient of \"{}\", or in other shares", name(id),
               name(use.buffer), name(update_op(use.index).inputs[0]));
    sum.content += content(update_op(use.index).inputs[1], kSquares);
  }
}

// What an update is clipped by: the squares of all gradients, each once, of all members.
void Checker::check_norm(TaskId id, TeamId team) {
  uint64_t sum = 0, all = 0;
  uint32_t next = 0;
  for (const Use& use : graph_.uses_of(id)) {
    if (use.kind != UseKind::Squares) continue;
    const std::optional<Seen> seen = see(id, use);
    if (!seen) continue;
    sum += seen->held.content;
    const bool host = graph_[id].kind == TaskKind::HostUpdate;
    if (use.write || use.view >= 0 || use.index != next++ || seen->tensor != training_.squares ||
        seen->held.share != 0 || on_host(use.buffer) != host || holder(use.buffer) != team ||
        layouts_.partial(seen->held.layout))
      complain("{}: {} does not hold squares of all members", name(id), name(use.buffer));
  }
  if (training_.squares.valid())
    for (size_t u = 0; u < updated_.size(); ++u) all += content(update_op(u).inputs[1], kSquares);
  if (sum != all) complain("{}: is not clipped by the squares of all gradients", name(id));
}

void Checker::update_one(TaskId id, uint32_t u, const std::vector<const Use*>& uses) {
  const Task& task = graph_[id];
  const Op& op = update_op(u);
  const TensorId tensor = op.inputs[0];
  const int32_t group = group_id(task.group);
  const bool host = task.kind == TaskKind::HostUpdate;
  if (host != strategy_.weights[u].host_update || !in(task.how, set_ids_) ||
      set_ids_[static_cast<size_t>(task.how)] != shared_over(u))
    return complain("{}: the strategy updates \"{}\" elsewhere, or in other shares", name(id),
                    name(tensor));
  const int32_t share = shared_over(u);
  const Use *weight = nullptr, *state = nullptr;
  size_t gradients = 0;
  uint64_t sum = 0;
  // Teams share the lane of their host: whose update it is, its operands say.
  const TeamId team = host ? holder(uses[0]->buffer) : team_of(id);
  const std::vector<int64_t>& mine = members(team, group);
  for (const Use* use : uses) {
    if (on_host(use->buffer) != host || holder(use->buffer) != team ||
        group_of(use->buffer) != group || use->adds ||
        use->write != (use->kind != UseKind::Gradient) || (use->write && use->view >= 0))
      complain("{}: {} is not where \"{}\" is updated", name(id), name(use->buffer), name(tensor));
    if (use->kind == UseKind::Gradient) ++gradients;
    const Use** operand = use->kind == UseKind::Weight ? &weight : &state;
    if (use->kind != UseKind::Gradient && use->kind != UseKind::Weight &&
        use->kind != UseKind::State)
      complain("{}: uses {} as {}", name(id), name(use->buffer), use_kind_name(use->kind));
    else if (use->kind != UseKind::Gradient && *operand != nullptr)
      complain("{}: updates {} as well", name(id), name(use->buffer));
    else if (use->kind != UseKind::Gradient)
      *operand = use;
  }
  const bool stateful = std::ranges::any_of(op.inputs.begin() + 2, op.inputs.end(),
                                            [](TensorId input) { return input.valid(); });
  if (weight == nullptr || gradients == 0 || (state != nullptr) != stateful)
    return complain("{}: lacks operands to update \"{}\"", name(id), name(tensor));
  Held& target = held(weight->buffer);
  const bool master = op.inputs.size() > 2 && op.inputs[2].valid();
  // The host rounds a new weight from its master copy.
  if (!target.there && !(host && master))
    complain("{}: updates {}, which is empty", name(id), name(weight->buffer));
  if (graph_[weight->buffer].tensor != tensor ||
      graph_[weight->buffer].kind != BufferKind::Weight ||
      (target.there && target.content != content(tensor, kFixed)))
    complain("{}: {} does not hold \"{}\" as it was", name(id), name(weight->buffer), name(tensor));
  const int32_t stored = share_of(weight->buffer);
  if ((stored != 0 && stored != share) || !layouts_.alike(target.layout, share, members(group)))
    complain("{}: {} is not in these shares", name(id), name(weight->buffer));
  for (const Use* use : uses) {
    if (use->kind != UseKind::Gradient) continue;
    const std::optional<Seen> seen = see(id, *use);
    if (!seen) continue;
    sum += seen->held.content;
    const bool lies = seen->held.layout == target.layout && !seen->held.open &&
                      layouts_.shape(seen->tensor) == layouts_.shape(tensor);
    if (!lies || (seen->held.share != 0 && seen->held.share != share) || seen->held.bits != 0)
      complain("{}: {} lies as {}, its weight as {}", name(id), name(use->buffer),
               format_layout(layouts_[seen->held.layout]), format_layout(layouts_[target.layout]));
  }
  if (sum != whole_gradient(u))
    complain("{}: its gradient of \"{}\" is not the sum of every term of every micro-batch, once",
             name(id), name(tensor));
  if (state != nullptr) {
    Held& kept = held(state->buffer);
    if (!kept.there || graph_[state->buffer].tensor != tensor || kept.share != share ||
        kept.content != content(tensor, kState) || kept.layout != target.layout)
      complain("{}: {} is not its state of \"{}\"", name(id), name(state->buffer), name(tensor));
    kept.content = content(tensor, kNewState);
  }
  if (host)
    for (const Use* use : uses) check_host_bytes(id, use->buffer);
  target.there = true;
  target.content = content(tensor, kNew);
  target.share = stored == 0 && host && on_one_host(group, mine, share) ? 0 : share;
  for (int64_t m : mine) updated_[u].emplace_back(group, m);
}

void Checker::check_updates() {
  for (size_t u = 0; u < updated_.size(); ++u) {
    auto& done = updated_[u];
    std::ranges::sort(done);
    bool right = !done.empty() && static_cast<int64_t>(done.size()) == members(done[0].first);
    for (size_t m = 0; m < done.size(); ++m)
      right = right && done[m] == std::pair(done[0].first, static_cast<int64_t>(m));
    if (!right)
      complain("\"{}\" is updated {} times, expected once on each member of one group",
               name(update_op(u).inputs[0]), done.size());
  }
  std::vector<bool> used(held_.size(), false);
  for (const Use& use : graph_.uses) used[use.buffer.index()] = true;
  for (size_t b = 0; b < held_.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    const BufferId id(b);
    if (held_[b].raw)
      complain("the pieces of the op that makes {} do not exchange values", name(id));
    if (!buffer.at_end || update_of_[buffer.tensor.index()] < 0) continue;
    const bool state = buffer.kind == BufferKind::OptimizerState;
    // Of a weight that another group updates.
    if (state && training_.options.ties_have_state && !used[b]) continue;
    if (held_[b].content != content(buffer.tensor, state ? kNewState : kNew))
      complain("{} is not new at the end of the step", name(id));
    else if (held_[b].share != share_of(id))
      complain("{} is new in one share only", name(id));
  }
}

}  // namespace windlass
