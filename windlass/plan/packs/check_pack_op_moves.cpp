// What packs move: copies to hosts and back, between teams, over replicas; and updates.
#include <algorithm>
#include <cstdlib>

#include "windlass/plan/packs/pack_op_checker.h"

namespace windlass {

// Traffic is scaled from a model of its sort, and so rounded.
void PackOpChecker::check_traffic(TaskId id, const Traffic& expected) {
  constexpr int64_t kRounding = 2;
  const Traffic& found = graph_.traffics[static_cast<size_t>(graph_[id].price)];
  bool same = std::abs(found.volume.value - expected.volume.value) <= kRounding &&
              found.loads.size() == expected.loads.size();
  for (size_t i = 0; same && i < found.loads.size(); ++i)
    same = found.loads[i].direction == expected.loads[i].direction &&
           std::abs(found.loads[i].bytes.value - expected.loads[i].bytes.value) <= kRounding;
  if (!same)
    complain("{}: its traffic is of {} bytes, expected {}", name(id), found.volume.value,
             expected.volume.value);
}

// From all buffers with an index to the one that is To with it, on each member of a team.
void PackOpChecker::copy(TaskId id) {
  const Task& task = graph_[id];
  const auto uses = graph_.uses_of(id);
  const LaneKind expected = task.kind == TaskKind::SwapIn    ? LaneKind::SwapIn
                            : task.kind == TaskKind::SwapOut ? LaneKind::SwapOut
                                                             : LaneKind::Compute;
  if (task.group != team(id) || lane(id) != expected)
    return complain("{}: is of no team, or on another lane", name(id));
  std::set<uint32_t> froms, tos;
  int64_t bytes = 0;
  for (const Use& use : uses) {
    if (use.kind == UseKind::From)
      froms.insert(use.index);
    else if (use.kind != UseKind::To || !tos.insert(use.index).second)
      complain("{}: uses {} as {}", name(id), name(use.buffer), use_kind_name(use.kind));
  }
  if (froms != tos || froms.empty()) return complain("{}: copies to nowhere", name(id));
  if (task.tensor.valid() && (tos.size() != 1 || graph_[uses.back().buffer].tensor != task.tensor))
    complain("{}: copies something else", name(id));
  for (const Use& use : uses)
    if (use.kind == UseKind::To) copy_to(id, use, bytes);
  if (task.kind == TaskKind::Join) {
    if (task.how != -1) complain("{}: joins no shares", name(id));
    return;
  }
  const bool in = task.kind == TaskKind::SwapIn;
  std::vector<Copy> copies;
  const EndpointId host = machine_.nodes[0].endpoint;
  for (DeviceId device : graph_.teams[static_cast<size_t>(team(id))].devices) {
    const EndpointId end = machine_[device].endpoint;
    copies.push_back({in ? host : end, in ? end : host, Bytes(bytes)});
    if (task.how == kFirstMember) break;
  }
  check_traffic(id, plan_copies(machine_, copies));
}

void PackOpChecker::copy_to(TaskId id, const Use& to, int64_t& bytes_moved) {
  const Task& task = graph_[id];
  const Buffer& buffer = graph_[to.buffer];
  const TensorId tensor = buffer.tensor;
  const bool out = task.kind == TaskKind::SwapOut, in = task.kind == TaskKind::SwapIn;
  if (!to.write || to.adds || to.view >= 0 || buffer.micro_batch != task.micro_batch ||
      (out ? !on_host(to.buffer) : !on_team(to.buffer, team(id))))
    complain("{}: {} is not where it copies to", name(id), name(to.buffer));
  std::vector<Seen> sources;
  bool state = false;
  for (const Use& use : graph_.uses_of(id)) {
    if (use.kind != UseKind::From || use.index != to.index) continue;
    if (use.write || use.adds || (in ? !on_host(use.buffer) : !on_team(use.buffer, team(id))))
      complain("{}: {} is not where it copies from", name(id), name(use.buffer));
    state = graph_[use.buffer].kind == BufferKind::OptimizerState;
    const std::optional<Seen> seen = see(id, use);
    if (!seen) return;
    if (seen->tensor != tensor || state != (buffer.kind == BufferKind::OptimizerState) ||
        seen->held.partial)
      complain("{}: {} is not what {} is for", name(id), name(use.buffer), name(to.buffer));
    if (buffer.kind == BufferKind::Stash && kind(tensor) != SampleKind::Apart)
      complain("{}: {} is no tensor of samples", name(id), name(to.buffer));
    sources.push_back(*seen);
  }
  const Held& first = sources.front().held;
  Held copied = first;
  if (kind(tensor) == SampleKind::Apart) {
    copied.samples = range(task.micro_batch);
    for (int64_t s = copied.samples.begin; s < copied.samples.end; ++s) {
      const auto has = [&](const Seen& seen) {
        return seen.held.samples.begin <= s && s < seen.held.samples.end;
      };
      if (std::ranges::count_if(sources, has) != 1)
        complain("{}: sample {} of {} does not come once", name(id), s, name(to.buffer));
    }
    copied.content = content(tensor, copied.samples);
    for (const Seen& seen : sources)
      if (seen.held.content != content(tensor, seen.held.samples))
        complain("{}: copies something else than \"{}\"", name(id), name(tensor));
    if (task.micro_batch < 0) complain("{}: is of no micro-batch", name(id));
    if (task.how != -1) complain("{}: samples have no shares", name(id));
    if (out && buffer.kind != BufferKind::Stash)
      complain("{}: {} is no stash", name(id), name(to.buffer));
  } else if (sources.size() != 1) {
    complain("{}: {} comes from several", name(id), name(to.buffer));
  }
  // Shares: of buffers that are for shares, or in their places in what is whole.
  const bool in_place = task.how >= 0;
  if (in_place && (!shares() || !in_digits(task.how) || buffer.share != 0))
    complain("{}: copies no such shares", name(id));
  if (task.how < -1 && (task.how != kFirstMember || !out || !replicated() || first.share))
    complain("{}: the first member cannot copy for all", name(id));
  const bool samples = kind(tensor) == SampleKind::Apart;
  if (out && first.share && !in_place && !state)
    complain("{}: copies more than the shares that are there", name(id));
  if (out && !samples && replicated() && !in_place && !first.share && task.how != kFirstMember)
    complain("{}: all members copy to the same place", name(id));
  copied.share = in && !samples && (in_place || buffer.share != 0);
  Held& target = held(to.buffer);
  const bool again = out && buffer.at_start;
  if (target.there && (!again || target.content == copied.content))
    complain("{}: overwrites {}", name(id), name(to.buffer));
  copied.there = true;
  target = copied;
  const int64_t element = state ? state_size(static_cast<size_t>(update_of_[tensor.index()]))
                                : element_bytes(training_.graph[tensor].type.dtype);
  if (samples)
    bytes_moved += bytes(tensor, task.micro_batch);
  else if (in_place || first.share || buffer.share != 0)
    bytes_moved += share_bytes(tensor, element);
  else
    bytes_moved += element_count(training_.graph[tensor].type.shape) * element;
}

bool PackOpChecker::in_digits(int32_t set) const {
  return in(set, graph_.digit_sets) && graph_.digit_sets[static_cast<size_t>(set)] ==
                                           std::vector<MemberDigit>{{1, strategy_.replicas}};
}

// To the same replica's device of the next place.
void PackOpChecker::send(TaskId id) {
  const Task& task = graph_[id];
  const auto uses = graph_.uses_of(id);
  const int32_t next = (team(id) + 1) % strategy_.depth;
  if (uses.size() != 2 || uses[0].kind != UseKind::From || uses[1].kind != UseKind::To ||
      uses[0].index != uses[1].index || uses[0].write || uses[0].adds || !uses[1].write ||
      uses[1].adds || uses[1].view >= 0 || !in(task.how, graph_.movements) ||
      task.group != team(id) || lane(id) != LaneKind::Send || task.micro_batch < 0)
    return complain("{}: sends nothing", name(id));
  const Movement& how = graph_.movements[static_cast<size_t>(task.how)];
  const Buffer& target = graph_[uses[1].buffer];
  const std::optional<Seen> seen = see(id, uses[0]);
  if (!seen) return;
  const auto lies = [&](int32_t layout) {
    return in(layout, graph_.layouts) &&
           graph_.layouts[static_cast<size_t>(layout)] == expected_layout(target);
  };
  if (!how.pairwise || how.sums || how.from_group != team(id) || how.to_group != next ||
      !lies(how.from_layout) || !lies(how.to_layout))
    complain("{}: is no move to the next team", name(id));
  if (!on_team(uses[0].buffer, team(id)) || !on_team(uses[1].buffer, next) ||
      target.group != next || seen->tensor != target.tensor || task.tensor != target.tensor ||
      target.micro_batch != task.micro_batch || held(uses[1].buffer).there || target.share != 0 ||
      kind(target.tensor) != SampleKind::Apart ||
      !holds(*seen, target.tensor, range(task.micro_batch)))
    complain("{}: {} is not for what is sent", name(id), name(uses[1].buffer));
  held(uses[1].buffer) = seen->held;
  std::vector<Copy> copies;
  for (size_t r = 0; r < graph_.teams[static_cast<size_t>(next)].devices.size(); ++r)
    copies.push_back({machine_[graph_.teams[static_cast<size_t>(team(id))].devices[r]].endpoint,
                      machine_[graph_.teams[static_cast<size_t>(next)].devices[r]].endpoint,
                      Bytes(bytes(target.tensor, task.micro_batch))});
  check_traffic(id, plan_copies(machine_, copies));
}

// Weights are put together from shares, gradients summed up, over the replicas.
void PackOpChecker::share(TaskId id) {
  const Task& task = graph_[id];
  const bool gathers = task.kind == TaskKind::Gather;
  const Collective expected = gathers    ? Collective::AllGather
                              : shares() ? Collective::ReduceScatter
                                         : Collective::AllReduce;
  const LaneKind where = gathers    ? LaneKind::Communicate
                         : shares() ? LaneKind::Reduce
                                    : LaneKind::Compute;
  if (!replicated() || !in(task.how, graph_.movements) || task.group != team(id) ||
      lane(id) != where || task.micro_batch >= 0)
    return complain("{}: is no such exchange", name(id));
  const Movement& how = graph_.movements[static_cast<size_t>(task.how)];
  if (how.pairwise || how.sums || how.collective != expected || how.from_layout >= 0 ||
      how.from_group != team(id) || how.to_group != team(id) || !in_digits(how.digits))
    complain("{}: is no such exchange over the replicas", name(id));
  int64_t bytes_moved = 0;
  std::set<uint32_t> seen_indices;
  const auto uses = graph_.uses_of(id);
  size_t matched = 0;
  for (const Use& use : uses) {
    if (use.kind != UseKind::From) continue;
    const auto other = [&](const Use& to) {
      return to.kind == UseKind::To && to.index == use.index;
    };
    const auto to = std::ranges::find_if(uses, other);
    const bool in_place = to == uses.end();
    matched += in_place ? 1 : 2;
    Held& from = held(use.buffer);
    const Buffer& buffer = graph_[use.buffer];
    if (!seen_indices.insert(use.index).second || use.view >= 0 || use.adds ||
        use.write != in_place || !on_team(use.buffer, team(id)) || !from.there ||
        buffer.kind != (gathers ? BufferKind::Weight : BufferKind::WeightGradient) ||
        (gathers ? !from.share || (buffer.share != 0) == in_place
                 : !from.partial || from.share || !in_place)) {
      complain("{}: {} cannot be exchanged", name(id), name(use.buffer));
      continue;
    }
    bytes_moved += bytes(buffer.tensor, -1);
    Held result = from;
    result.share = !gathers && shares();
    result.partial = false;
    if (in_place) {
      from = result;
      continue;
    }
    const Buffer& target = graph_[to->buffer];
    if (!to->write || to->adds || to->view >= 0 || !on_team(to->buffer, team(id)) ||
        target.tensor != buffer.tensor || target.share != 0 || held(to->buffer).there ||
        target.kind != BufferKind::Weight)
      complain("{}: {} is not for what is exchanged", name(id), name(to->buffer));
    held(to->buffer) = result;
  }
  if (matched != uses.size() || matched == 0 || *seen_indices.rbegin() >= seen_indices.size())
    complain("{}: uses buffers that it does not exchange", name(id));
  const std::vector<DeviceGroup> groups{graph_.teams[static_cast<size_t>(team(id))].devices};
  // By the algorithm that the task names: that of large transfers.
  const auto algorithm = graph_.traffics[static_cast<size_t>(task.price)].algorithm;
  check_traffic(id, plan_collective(machine_, expected, algorithm, groups, Bytes(bytes_moved)));
}

void PackOpChecker::update(TaskId id) {
  std::map<uint32_t, std::vector<const Use*>> updates;
  for (const Use& use : graph_.uses_of(id)) updates[use.index].push_back(&use);
  const Task& task = graph_[id];
  const bool host = task.kind == TaskKind::HostUpdate;
  if (task.micro_batch >= 0 || updates.empty() || updates.rbegin()->first >= updated_.size() ||
      task.group != team(id) || lane(id) != (host ? LaneKind::Host : LaneKind::Compute) ||
      (!host && replicated() ? !in_digits(task.how) : task.how != 0))
    return complain("{}: updates no weight of its team", name(id));
  for (const auto& [u, uses] : updates) update_one(id, u, uses);
}

void PackOpChecker::update_one(TaskId id, uint32_t u, const std::vector<const Use*>& uses) {
  const Op& op = update_op(u);
  const TensorId tensor = op.inputs[0];
  const bool host = graph_[id].kind == TaskKind::HostUpdate;
  const size_t pack = pack_of(home_[u]);
  if (host != (strategy_.device_update[pack] == 0) || team(id) != backward_team(pack))
    complain("{}: \"{}\" is updated elsewhere", name(id), name(tensor));
  const Use *weight = nullptr, *state = nullptr;
  uint64_t sum = 0;
  for (const Use* use : uses) {
    const Buffer& buffer = graph_[use->buffer];
    if ((host ? !on_host(use->buffer) : !on_team(use->buffer, team(id))) || use->adds ||
        use->view >= 0 || use->write != (use->kind != UseKind::Gradient))
      complain("{}: {} is not where \"{}\" is updated", name(id), name(use->buffer), name(tensor));
    if (use->kind == UseKind::Gradient) {
      const Held& gradient = held(use->buffer);
      if (!gradient.there || buffer.tensor != op.inputs[1] || gradient.partial ||
          (gradient.share && (host || !replicated())))
        complain("{}: {} is no gradient of \"{}\" that is summed up", name(id), name(use->buffer),
                 name(tensor));
      sum += gradient.content;
    } else if (use->kind == UseKind::Weight && weight == nullptr) {
      weight = use;
    } else if (use->kind == UseKind::State && state == nullptr) {
      state = use;
    } else {
      complain("{}: uses {} as {}", name(id), name(use->buffer), use_kind_name(use->kind));
    }
  }
  if (weight == nullptr || (state != nullptr) != (state_size(u) > 0))
    return complain("{}: lacks operands to update \"{}\"", name(id), name(tensor));
  if (sum != tensors_[op.inputs[1].index()] * number(Range{0, share_}))
    complain("{}: its gradient of \"{}\" is not the sum over every sample, once", name(id),
             name(tensor));
  Held& target = held(weight->buffer);
  const Buffer& buffer = graph_[weight->buffer];
  if (!target.there || buffer.tensor != tensor || buffer.kind != BufferKind::Weight ||
      target.content != tensors_[tensor.index()] * number(kFixed) || target.share)
    complain("{}: {} does not hold \"{}\" as it was", name(id), name(weight->buffer), name(tensor));
  target.content = tensors_[tensor.index()] * number(kNew);
  target.share = !host && replicated();
  ++updated_[u];
  if (state == nullptr) return;
  Held& kept = held(state->buffer);
  if (!kept.there || graph_[state->buffer].tensor != tensor ||
      graph_[state->buffer].kind != BufferKind::OptimizerState ||
      kept.content != tensors_[tensor.index()] * number(kState) ||
      kept.share != (!host && replicated()))
    complain("{}: {} is not its state of \"{}\"", name(id), name(state->buffer), name(tensor));
  kept.content = tensors_[tensor.index()] * number(kNewState);
}

}  // namespace windlass
