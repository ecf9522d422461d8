// Moves: between members, and between devices and hosts.

#include <algorithm>

#include "windlass/plan/checker.h"
#include "windlass/task/lower.h"

namespace windlass {

// Whether each team of a group has exactly one such use, of a buffer of the group.
bool Checker::everybody(TaskId id, UseKind kind, uint32_t index, int32_t group) {
  std::vector<MemoryId> found, expected;
  for (TeamId team : teams_[static_cast<size_t>(group)]) expected.push_back(graph_[team].memory);
  for (const Use& use : graph_.uses_of(id))
    if (use.kind == kind && use.index == index)
      found.push_back(group_of(use.buffer) == group ? graph_[use.buffer].memory : MemoryId());
  std::ranges::sort(found);
  std::ranges::sort(expected);
  if (found == expected) return true;
  complain("{}: has {} buffers as {} {}, expected one on each of {} teams of group {}", name(id),
           found.size(), use_kind_name(kind), index, expected.size(), group);
  return false;
}

void Checker::check_traffic(TaskId id, int32_t expected, const char* what) {
  const int32_t price = graph_[id].price;
  if (expected < 0 || same_traffic_.contains({expected, price})) return;
  const Traffic& wanted = moves_.traffic(expected);
  const Traffic& found = graph_.traffics[static_cast<size_t>(price)];
  const bool same = wanted.volume == found.volume && wanted.latency == found.latency &&
                    std::ranges::equal(wanted.loads, found.loads, [](auto& a, auto& b) {
                      return a.direction == b.direction && a.bytes == b.bytes;
                    });
  if (same)
    same_traffic_.emplace(expected, price);
  else
    complain("{}: {} sends {} bytes from each member, it is priced for {}", name(id), what,
             wanted.volume.value, found.volume.value);
}

// What arrives in a buffer. It was empty, or held what is now out of date.
void Checker::replace(TaskId id, BufferId buffer, const Held& from) {
  Held& target = held(buffer);
  const TensorId tensor = graph_[buffer].tensor;
  const auto renews = [&](Version before, Version after) {
    return target.content == content(tensor, before) && from.content == content(tensor, after);
  };
  if (target.there && !renews(kFixed, kNew) && !renews(kState, kNewState))
    complain("{}: overwrites {}", name(id), name(buffer));
  const int32_t layout = target.layout;
  target = from;
  target.there = true;
  target.layout = layout;
}

// One tensor from one layout to another.
void Checker::move(TaskId id) {
  const Task& task = graph_[id];
  if (!task.tensor.valid() || !in(task.how, graph_.movements))
    return complain("{}: moves nothing", name(id));
  const Movement& how = graph_.movements[static_cast<size_t>(task.how)];
  if (!in(how.from_layout, graph_.layouts) || !in(how.to_layout, graph_.layouts) ||
      !in(how.from_group, graph_.groups) || !in(how.to_group, graph_.groups) ||
      !in(how.digits, graph_.digit_sets))
    return complain("{}: does not say from where to where", name(id));
  const CheckedMove move = {.tensor = task.tensor,
                            .element_size = element_bytes(training_.graph[task.tensor].type.dtype),
                            .pairwise = how.pairwise,
                            .sums = how.sums,
                            .collective = how.collective,
                            .digits = set_ids_[static_cast<size_t>(how.digits)],
                            .from = layout_id(how.from_layout),
                            .to = layout_id(how.to_layout),
                            .from_group = group_id(how.from_group),
                            .to_group = group_id(how.to_group)};
  const bool crosses = task.kind == TaskKind::Send;
  if (move.from_group < 0 || move.to_group < 0 || group_id(task.group) != move.from_group ||
      crosses != (move.from_group != move.to_group))
    return complain("{}: is not between the groups that it names", name(id));
  const auto uses = graph_.uses_of(id);
  const bool in_place = std::ranges::find(uses, UseKind::To, &Use::kind) == uses.end();
  const auto teams = [&](int32_t group) { return teams_[static_cast<size_t>(group)].size(); };
  if (!everybody(id, UseKind::From, 0, move.from_group) ||
      (!in_place && !everybody(id, UseKind::To, 0, move.to_group)))
    return;
  if (uses.size() != teams(move.from_group) + (in_place ? 0 : teams(move.to_group)))
    return complain("{}: uses buffers that it does not move", name(id));
  const MoveFacts& facts = moves_.facts(move);
  if (!facts.wrong.empty())
    complain("{}: from {} to {}: {}", name(id), format_layout(layouts_[move.from]),
             format_layout(layouts_[move.to]), facts.wrong);
  check_traffic(id, facts.traffic, "this move");
  if (in_place && (move.pairwise || move.collective != Collective::AllReduce))
    complain("{}: is done in place", name(id));
  if (!move.pairwise && how.sums) complain("{}: a collective adds no halos", name(id));

  std::optional<Held> moved;
  for (const Use& use : uses) {
    if (use.kind != UseKind::From) continue;
    const std::optional<Seen> seen = see(id, use);
    if (!seen || use.write != in_place || use.adds || (in_place && use.view >= 0)) {
      complain("{}: {} cannot be moved", name(id), name(use.buffer));
      continue;
    }
    const Held& from = seen->held;
    // Sums of terms of a weight's gradient are of all micro-batches, and named after one of them.
    const bool sum = task.tensor == training_.squares ||
                     (gradients_[task.tensor.index()] &&
                      layouts_.shape(seen->tensor) == layouts_.shape(task.tensor));
    if (!sum && !holds(*seen, task.tensor, task.micro_batch) &&
        from.content != content(task.tensor, kNew))
      complain("{}: {} does not hold what is moved", name(id), name(use.buffer));
    if (from.layout != move.from || from.share != 0 || from.bits != 0)
      complain("{}: {} lies as {}, moved from {}", name(id), name(use.buffer),
               format_layout(layouts_[from.layout]), format_layout(layouts_[move.from]));
    if (moved && (moved->content != from.content || moved->open != from.open))
      complain("{}: {} holds something else than the others", name(id), name(use.buffer));
    moved = from;
    if (in_place) held(use.buffer).layout = move.to;
  }
  if (!moved) return;
  if (move.pairwise && (facts.overlaps || facts.gaps) && how.sums != moved->open)
    complain("{}: {} where parts overlap, or nobody has any", name(id),
             how.sums ? "adds up copies" : "leaves out shares of a sum");
  if (facts.gaps && !how.sums)
    complain("{}: from {} to {}: nobody has some of what is wanted", name(id),
             format_layout(layouts_[move.from]), format_layout(layouts_[move.to]));
  if (move.pairwise) moved->open = false;
  for (const Use& use : uses) {
    if (use.kind != UseKind::To) continue;
    const Buffer& target = graph_[use.buffer];
    const int32_t layout = held(use.buffer).layout;
    if (!use.write || use.adds || use.view >= 0 || target.tensor != task.tensor ||
        target.micro_batch != task.micro_batch || held(use.buffer).share != 0)
      complain("{}: {} is not for what is moved", name(id), name(use.buffer));
    if (!layouts_.fits(task.tensor, move.to, layout, members(move.to_group)) ||
        (moved->open && layout != move.to))
      complain("{}: {} is for {}, moved to {}", name(id), name(use.buffer),
               format_layout(layouts_[layout]), format_layout(layouts_[move.to]));
    replace(id, use.buffer, *moved);
  }
}

// Several tensors over the members that share them: partial sums are summed up, and shared out or
// not; shares are put together.
void Checker::share(TaskId id) {
  const Task& task = graph_[id];
  if (!in(task.how, graph_.movements)) return complain("{}: moves nothing", name(id));
  const Movement& how = graph_.movements[static_cast<size_t>(task.how)];
  const int32_t group = group_id(task.group);
  const bool gathers = task.kind == TaskKind::Gather;
  const bool scatters = how.collective == Collective::ReduceScatter;
  const bool right = gathers ? how.collective == Collective::AllGather
                             : scatters || how.collective == Collective::AllReduce;
  if (group < 0 || !in(how.digits, graph_.digit_sets) || how.from_layout >= 0 || how.pairwise ||
      how.sums || !right || task.micro_batch >= 0 || how.from_group != task.group ||
      how.to_group != task.group)
    return complain("{}: is no such exchange in its group", name(id));
  const int32_t digits = set_ids_[static_cast<size_t>(how.digits)];
  if (!layouts_.among(digits, members(group)))
    return complain("{}: its group has no such digits", name(id));
  const auto uses = graph_.uses_of(id);
  std::map<uint32_t, size_t> froms, tos;
  for (const Use& use : uses) ++(use.kind == UseKind::From ? froms : tos)[use.index];
  size_t count = 0;
  int64_t bytes = 0;
  if (froms.empty() || froms.rbegin()->first >= froms.size())
    return complain("{}: numbers what it exchanges with gaps", name(id));
  for (const auto& [index, number] : froms) {
    const bool in_place = !tos.contains(index);
    if (!everybody(id, UseKind::From, index, group) ||
        (!in_place && !everybody(id, UseKind::To, index, group)))
      return;
    count += (in_place ? 1 : 2) * teams_[static_cast<size_t>(group)].size();
    std::optional<Held> exchanged;
    for (const Use& use : uses) {
      if (use.kind != UseKind::From || use.index != index) continue;
      const std::optional<Seen> seen = see(id, use);
      if (!seen || use.view >= 0 || use.adds || use.write != in_place || seen->held.bits != 0) {
        complain("{}: {} cannot be exchanged", name(id), name(use.buffer));
        continue;
      }
      const Held& from = seen->held;
      if (gathers ? from.share != digits || digits == 0 ||
                        share_of(use.buffer) != (in_place ? 0 : digits)
                  : from.share != 0 || layouts_.partial_digits(from.layout) != digits)
        complain("{}: {} lies as {}, which is not {} over these members", name(id),
                 name(use.buffer), format_layout(layouts_[from.layout]),
                 gathers ? "shared out" : "partial");
      if (exchanged && (exchanged->content != from.content || exchanged->layout != from.layout))
        complain("{}: {} holds something else than the others", name(id), name(use.buffer));
      if (!exchanged)
        bytes += layouts_.elements(seen->tensor, from.layout) * element_size(use.buffer);
      exchanged = from;
      if (!gathers) exchanged->layout = layouts_.settled(from.layout);
      exchanged->share = scatters ? digits : 0;
      if (in_place) held(use.buffer) = *exchanged;
      exchanged->layout = from.layout;
    }
    if (!exchanged) continue;
    if (!in_place && !gathers && !scatters) complain("{}: leaves its results twice", name(id));
    for (const Use& use : uses) {
      if (use.kind != UseKind::To || use.index != index) continue;
      Held& target = held(use.buffer);
      if (!use.write || use.view >= 0 || share_of(use.buffer) != exchanged->share ||
          target.layout != layouts_.settled(exchanged->layout))
        complain("{}: {} is not for what is exchanged", name(id), name(use.buffer));
      const uint64_t before = target.content;
      if (use.adds != target.there || (use.adds && gathers))
        complain("{}: {} {}", name(id), use.adds ? "adds to" : "overwrites", name(use.buffer));
      target.there = false;
      replace(id, use.buffer, *exchanged);
      if (use.adds) target.content += before;
    }
  }
  if (count != uses.size()) complain("{}: uses buffers that it does not exchange", name(id));
  check_traffic(id, moves_.collective(how.collective, group, digits, bytes), "this exchange");
}

// From i to To i, on each member of a team: to the host and back, to fewer bits and back.
// A page goes to the host or comes back, whatever it holds, with all of its buffer.
void Checker::page(TaskId id) {
  const Task& task = graph_[id];
  const auto uses = graph_.uses_of(id);
  const int32_t group = group_id(task.group);
  const bool out = task.kind == TaskKind::SwapOut;
  const bool paired = uses.size() == 2 && uses[0].kind == UseKind::From && !uses[0].write &&
                      uses[1].kind == UseKind::To && uses[1].write && uses[0].view < 0 &&
                      uses[1].view < 0 && !uses[0].adds && !uses[1].adds && task.how == -1;
  if (!paired || group < 0 || graph_.lanes_of(id).size() != 1)
    return complain("{}: is no copy of a page", name(id));
  const BufferId from = uses[0].buffer, to = uses[1].buffer;
  const BufferId device = out ? from : to, stored = out ? to : from;
  const Buffer &a = graph_[device], &b = graph_[stored];
  const std::vector<int64_t>& mine = members(team_of(id), group);
  if (mine.empty() || a.memory != memory_of(id) || group_of(device) != group || !on_host(stored) ||
      !b.of_each || b.team != team_of(id) || a.kind != b.kind || a.tensor != b.tensor ||
      a.tensor != task.tensor || a.micro_batch != b.micro_batch || a.group != b.group ||
      held(from).layout != held(to).layout || a.share != b.share)
    return complain("{}: {} is no page of {}", name(id), name(stored), name(device));
  const NodeId node = graph_[b.memory].hosts.front();
  const int64_t here = std::ranges::count_if(graph_[team_of(id)].devices,
                                             [&](DeviceId d) { return machine_[d].node == node; });
  if (b.bytes.value != here * a.bytes.value)
    complain("{}: {} has {} bytes, {} are needed", name(id), name(stored), b.bytes.value,
             here * a.bytes.value);
  if (!held(from).there)
    return complain("{}: reads {}, which nobody has written", name(id), name(from));
  held(to) = held(from);
  check_traffic(id, moves_.host_copies(group, mine, out, a.bytes.value), "this copy");
}

void Checker::copy(TaskId id) {
  const Task& task = graph_[id];
  const auto uses = graph_.uses_of(id);
  for (const Use& use : uses)
    if (graph_[use.buffer].of_each) return page(id);
  const int32_t group = group_id(task.group);
  if (group < 0 || graph_.lanes_of(id).size() != 1 || members(team_of(id), group).empty())
    return complain("{}: is of no team of its group", name(id));
  const bool out = task.kind == TaskKind::SwapOut || task.kind == TaskKind::Compress;
  const bool compresses = task.kind == TaskKind::Compress || task.kind == TaskKind::Decompress;
  if (!compresses && task.how != -1) complain("{}: copies shares", name(id));
  int64_t bytes = 0;
  std::set<uint32_t> pairs;
  for (const Use& from : uses) {
    if (from.kind != UseKind::From) continue;
    const auto other = [&](const Use& use) {
      return use.kind == UseKind::To && use.index == from.index;
    };
    const auto to = std::ranges::find_if(uses, other);
    if (to == uses.end() || !pairs.insert(from.index).second || from.write || !to->write ||
        from.adds || to->adds || to->view >= 0)
      return complain("{}: copies {} to nowhere", name(id), name(from.buffer));
    const BufferId device = out ? from.buffer : to->buffer;
    const BufferId stored = out ? to->buffer : from.buffer;
    if (graph_[device].memory != memory_of(id) || group_of(device) != group ||
        on_host(stored) == compresses || !stored_for(stored, team_of(id), group))
      complain("{}: {} and {} are not there", name(id), name(device), name(stored));
    else
      bytes += copy_one(id, from, *to);
  }
  if (uses.size() != 2 * pairs.size() || pairs.empty())
    complain("{}: uses {} buffers for {} copies", name(id), uses.size(), pairs.size());
  if (!compresses)
    check_traffic(id, moves_.host_copies(group, members(team_of(id), group), out, bytes),
                  "this copy");
}

// Whether what is stored is of the members of a team: their own, or, where another group runs the
// backward pass, of those with the same numbers on the same hosts.
bool Checker::stored_for(BufferId stored, TeamId team, int32_t group) const {
  const int32_t other = group_of(stored);
  if (holder(stored) == team && other == group) return true;
  const std::vector<int64_t>& theirs = members(holder(stored), other);
  return graph_[stored].kind == BufferKind::Stash &&
         std::ranges::all_of(members(team, group), [&](int64_t m) {
           return std::ranges::binary_search(theirs, m) &&
                  machine_[devices(other)[static_cast<size_t>(m)]].node ==
                      machine_[devices(group)[static_cast<size_t>(m)]].node;
         });
}

// Returns the bytes that each member copies.
int64_t Checker::copy_one(TaskId id, const Use& from, const Use& to) {
  const Task& task = graph_[id];
  const Buffer& target = graph_[to.buffer];
  const std::optional<Seen> seen = see(id, from);
  if (!seen) return 0;
  const bool out = task.kind == TaskKind::SwapOut || task.kind == TaskKind::Compress;
  const int32_t group = group_id(task.group);
  const std::vector<int64_t>& mine = members(team_of(id), group);
  Held copied = seen->held;
  const bool named = seen->tensor == target.tensor || target.kind == BufferKind::WeightGradient;
  if (!named || layouts_.shape(seen->tensor) != layouts_.shape(target.tensor) ||
      copied.layout != held(to.buffer).layout || copied.open ||
      target.micro_batch != task.micro_batch ||
      members(group_of(from.buffer)) != members(group_of(to.buffer)))
    complain("{}: copies {} as {} to {}", name(id), name(from.buffer),
             format_layout(layouts_[copied.layout]), name(to.buffer));
  // A share may be cut out of what is whole, and put in its place there.
  const int32_t wanted = share_of(to.buffer);
  if (copied.share != 0 && wanted != 0 && copied.share != wanted)
    complain("{}: {} is shared out otherwise", name(id), name(from.buffer));
  if (wanted != 0)
    copied.share = wanted;
  else if (on_host(to.buffer) && on_one_host(group, mine, copied.share))
    copied.share = 0;
  const BufferId device = out ? from.buffer : to.buffer;
  const BufferId stored = out ? to.buffer : from.buffer;
  const bool stashes = task.micro_batch >= 0;
  if (stashes) {
    check_stash(id, device, stored);
    const int32_t bits = task.kind == TaskKind::Compress ? task.how : 0;
    if (copied.bits != (task.kind == TaskKind::Decompress ? task.how : 0))
      complain("{}: {} has {} bits", name(id), name(from.buffer), copied.bits);
    copied.bits = bits;
  } else {
    check_host_bytes(id, stored);
  }
  replace(id, to.buffer, copied);
  return stashes ? graph_[device].bytes.value
                 : std::min(part_bytes(from.buffer), part_bytes(to.buffer));
}

// A saved tensor goes where the strategy says, with all of its buffer.
void Checker::check_stash(TaskId id, BufferId device, BufferId stored) {
  const Task& task = graph_[id];
  const int32_t saved = task.tensor.valid() ? saved_of_[task.tensor.index()] : -1;
  const bool compresses = task.kind == TaskKind::Compress || task.kind == TaskKind::Decompress;
  const MemoryAction action =
      saved < 0 ? MemoryAction::Keep : strategy_.saved[static_cast<size_t>(saved)];
  const int bits = compressed_bits(action);
  if (saved_of_[graph_[device].tensor.index()] != saved ||
      (compresses ? bits == 0 || task.how != bits : action != MemoryAction::Offload))
    complain("{}: \"{}\" is to be {}", name(id), name(graph_[device].tensor), action_name(action));
  const int64_t size = graph_[device].bytes.value;
  int64_t expected = 0;
  if (compresses) {
    // Groups of 64 elements share two ends of 16 bits each; a smaller tensor is one group.
    const int64_t elements =
        size / element_bytes(training_.graph[graph_[device].tensor].type.dtype);
    const int64_t groups = elements == 0 ? 0 : std::max<int64_t>(1, elements / 64);
    expected = allocated((elements * bits + 7) / 8 + groups * 4).value;
  } else {
    const NodeId node = graph_[graph_[stored].memory].hosts.front();
    expected = size * std::ranges::count_if(graph_[team_of(id)].devices,
                                            [&](DeviceId d) { return machine_[d].node == node; });
  }
  if (graph_[stored].bytes.value != expected)
    complain("{}: {} has {} bytes, {} are needed", name(id), name(stored),
             graph_[stored].bytes.value, expected);
}

}  // namespace windlass
