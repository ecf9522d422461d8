// Moves: to hosts and back, and between devices.

#include <algorithm>
#include <set>

#include "windlass/base/error.h"
#include "windlass/runtime/program_maker.h"

namespace windlass {

void ProgramMaker::copy(TaskId id) {
  const Task& task = tasks_[id];
  ProgramTask& made = program_.tasks[id.index()];
  for (Part& part : made.parts) {
    for (const Use& use : tasks_.uses_of(id))
      if (use.kind == UseKind::To) copy(id, use, part);
    if (task.how == kFirstMember) break;
  }
  // Of members that bring the same to the same place of a host, the first one does.
  std::set<std::pair<int32_t, int64_t>> written;
  for (Part& part : made.parts) {
    std::erase_if(part.flat_copies, [&](const FlatCopy& copy) {
      return !written.insert({copy.to, copy.to_at}).second;
    });
    std::set<int32_t> others;  // that another part has written before
    for (const PartCopy& copy : part.part_copies)
      if (written.contains({copy.to, -1})) others.insert(copy.to);
    std::erase_if(part.part_copies, [&](const PartCopy& copy) { return others.contains(copy.to); });
    for (const PartCopy& copy : part.part_copies) written.insert({copy.to, -1});
    for (const FlatCopy& copy : part.flat_copies) part.allocates.push_back(copy.to);
    for (const PartCopy& copy : part.part_copies) part.allocates.push_back(copy.to);
  }
}

// One buffer from those that have parts of it, on one member.
void ProgramMaker::copy(TaskId id, const Use& to, Part& part) const {
  const Task& task = tasks_[id];
  const Buffer& target = tasks_[to.buffer];
  const int32_t to_slot = slot(to.buffer, part.member);
  std::vector<const Use*> from;
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == UseKind::From && use.index == to.index) from.push_back(&use);
  ensure(!from.empty(), "a copy comes from nowhere");
  const Buffer& source = tasks_[from[0]->buffer];
  const bool swap = task.kind == TaskKind::SwapIn || task.kind == TaskKind::SwapOut;
  const int32_t how = swap ? std::max(task.how, -1) : -1;
  if (source.kind != BufferKind::OptimizerState && how < 0 && source.share == 0 &&
      target.share == 0) {
    const Region region = held_.region(to.buffer, part.member);
    int64_t found = 0;
    for (const Use* use : from) {
      Seen seen = see(*use, part.member);
      PartCopy copied = {.from = std::move(seen.operand),
                         .to = to_slot,
                         .dtype = training_.graph[source.tensor].type.dtype,
                         .overlap = Overlap(seen.region, region)};
      found += copied.overlap.elements();
      part.part_copies.push_back(std::move(copied));
    }
    ensure(found == element_count(local_shape(region)),
           "what is copied is not all there, or there twice");
    return;
  }
  ensure(from.size() == 1 && from[0]->view < 0, "a share is copied from several buffers");
  const int64_t elements = element_count(local_shape(held_.region(to.buffer, part.member)));
  const int32_t set = how >= 0 ? how : source.share != 0 ? source.share : target.share;
  const Range mine = share_of(elements, digits(set), part.member);
  const bool whole = how < 0 && source.share == target.share;
  // Tensors that lie one behind the other: one, or those of the optimizer's state.
  std::vector<int64_t> sizes;
  if (source.kind == BufferKind::OptimizerState) {
    for (size_t u = first_update_; u < training_.graph.ops.size(); ++u) {
      const Op& op = training_.graph.ops[u];
      if (op.inputs[0] != source.tensor) continue;
      for (size_t k = 2; k < op.inputs.size(); ++k)
        if (op.inputs[k].valid())
          sizes.push_back(element_bytes(training_.graph[op.inputs[k]].type.dtype));
    }
  } else {
    sizes = {element_bytes(training_.graph[source.tensor].type.dtype)};
  }
  const int32_t from_slot = slot(from[0]->buffer, part.member);
  const int64_t from_all = source.share != 0 ? mine.size() : elements;
  const int64_t to_all = target.share != 0 ? mine.size() : elements;
  int64_t from_base = 0, to_base = 0;
  for (int64_t each : sizes) {
    FlatCopy copied = {.from = from_slot, .to = to_slot, .from_at = from_base, .to_at = to_base};
    if (whole) {
      copied.bytes = from_all * each;
    } else {
      copied.from_at += (source.share != 0 ? 0 : mine.begin) * each;
      copied.to_at += (target.share != 0 ? 0 : mine.begin) * each;
      copied.bytes = mine.size() * each;
    }
    from_base += from_all * each;
    to_base += to_all * each;
    part.flat_copies.push_back(copied);
  }
}

// Data that a task brings lies in all of a host.
void let_swaps_go_apart(Program& program) {
  for (ProgramTask& task : program.tasks)
    if (task.kind == TaskKind::SwapIn || task.kind == TaskKind::SwapOut)
      task.apart |= task.parts.size() > 1 && task.brings.empty();
}

const Use* ProgramMaker::find(TaskId id, UseKind kind, uint32_t index, int64_t member) const {
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == kind && use.index == index && held_.holders(use.buffer).contains(member))
      return &use;
  return nullptr;
}

void ProgramMaker::exchange(TaskId id) {
  const Task& task = tasks_[id];
  if (task.op.valid()) return merge(id);
  const Movement& movement = tasks_.movements[static_cast<size_t>(task.how)];
  if (movement.from_layout >= 0) {
    redistribute(id);
  } else {
    uint32_t count = 0;
    for (const Use& use : tasks_.uses_of(id)) count = std::max(count, use.index + 1);
    for (uint32_t i = 0; i < count; ++i) share(id, i);
  }
  note_layouts(id);
  ProgramTask& made = program_.tasks[id.index()];
  std::set<int32_t> allocated;
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == UseKind::To && !use.adds)
      for (int32_t slot : program_.slots_of[use.buffer.index()]) allocated.insert(slot);
  made.allocates.assign(allocated.begin(), allocated.end());
}

// What is moved in place lies otherwise afterwards.
void ProgramMaker::note_layouts(TaskId id) {
  const Movement& movement = tasks_.movements[static_cast<size_t>(tasks_[id].how)];
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == UseKind::From && use.write)
      held_.set_layout(use.buffer, layout_after(tasks_, movement, held_.layout(use.buffer)));
}

// Statistics of the pieces become those of all.
void ProgramMaker::merge(TaskId id) {
  const Movement& movement = tasks_.movements[static_cast<size_t>(tasks_[id].how)];
  std::map<int64_t, BufferId> buffer_of;  // by member
  for (const Use& use : tasks_.uses_of(id))
    for (int64_t member : held_.members(use.buffer)) buffer_of[member] = use.buffer;
  std::set<int64_t> done;
  for (const auto& [member, buffer] : buffer_of) {
    if (done.contains(member)) continue;
    const auto begun = begun_.find({buffer.value, member});
    ensure(begun != begun_.end(), "there is nothing to merge");
    StatisticsMerge made = {.slots = {}, .exchange = begun->second};
    for (int64_t peer : peers_of(digits(movement.digits), member)) {
      made.slots.push_back(slot(buffer_of.at(peer), peer));
      done.insert(peer);
    }
    program_.tasks[id.index()].merges.push_back(std::move(made));
  }
  for (const auto& [member, buffer] : buffer_of) begun_.erase({buffer.value, member});
}

// One tensor, from one layout to another.
void ProgramMaker::redistribute(TaskId id) {
  const Task& task = tasks_[id];
  ProgramTask& made = program_.tasks[id.index()];
  const Movement& movement = tasks_.movements[static_cast<size_t>(task.how)];
  const Layout& from = tasks_.layouts[static_cast<size_t>(movement.from_layout)];
  const DType dtype = training_.graph[task.tensor].type.dtype;
  const int64_t senders = members(movement.from_group), receivers = members(movement.to_group);
  std::vector<Seen> seen;
  for (int64_t m = 0; m < senders; ++m) {
    const Use* use = find(id, UseKind::From, 0, m);
    ensure(use != nullptr, "a member has nothing to send");
    seen.push_back(see(*use, m));
    ensure(seen.back().region == held_.region(from, task.tensor, task.micro_batch, m),
           "what is sent does not lie as the move says");
  }
  std::set<int64_t> combined;  // in place
  for (int64_t m = 0; m < receivers; ++m) {
    const Use* use = find(id, UseKind::To, 0, m);
    std::vector<int64_t> peers;
    if (movement.pairwise)
      for (int64_t s = 0; s < senders; ++s) peers.push_back(s);
    else
      peers = peers_of(digits(movement.digits), m);
    if (use == nullptr) {
      // Partial sums that are combined where they lie.
      const Use* own = find(id, UseKind::From, 0, m);
      ensure(own != nullptr && own->view < 0 && movement.collective == Collective::AllReduce,
             "a member has no place for what it is sent");
      if (combined.contains(m)) continue;
      TermSum sum = {.count = element_count(local_shape(seen[static_cast<size_t>(m)].region)),
                     .dtype = dtype,
                     .combine = partial_combine(from)};
      for (int64_t peer : peers) {
        const Seen& term = seen[static_cast<size_t>(peer)];
        ensure(term.region == seen[static_cast<size_t>(m)].region, "members sum different parts");
        sum.terms.push_back({.slot = term.operand.slot});
        combined.insert(peer);
      }
      sum.results = sum.terms;
      made.sums.push_back(std::move(sum));
      continue;
    }
    const Region wanted = held_.region(use->buffer, m);
    Receive receive = {.to = slot(use->buffer, m),
                       .type = {dtype, local_shape(wanted)},
                       .combine = movement.pairwise ? CombineFn::Sum : partial_combine(from),
                       .sums = movement.sums,
                       .sources = {}};
    // Of several that hold the same, the member itself, or the first.
    std::vector<std::pair<int64_t, const Region*>> taken;  // place, part
    const auto take = [&](int64_t s) {
      const Seen& there = seen[static_cast<size_t>(s)];
      const int64_t place = movement.pairwise ? 0 : partial_place(from, s);
      for (const auto& [known, part] : taken)
        if (known == place && *part == there.region) return;
      Overlap overlap(there.region, wanted);
      if (overlap.elements() == 0) return;
      taken.emplace_back(place, &there.region);
      // Where parts are added up, each is a term of its own, in the order of the members.
      receive.sources.push_back({there.operand, std::move(overlap), movement.sums ? s : place});
    };
    const bool has_own = movement.from_group == movement.to_group &&
                         std::ranges::find(peers, m) != peers.end() && !movement.sums;
    if (has_own) take(m);
    for (int64_t s : peers) take(s);
    std::ranges::stable_sort(receive.sources, {}, &Receive::Source::place);
    if (!movement.sums) {
      // Each place has all that is wanted.
      const int64_t elements = element_count(receive.type.shape);
      std::map<int64_t, int64_t> found;
      for (const Receive::Source& source : receive.sources)
        found[source.place] += source.overlap.elements();
      ensure(elements == 0 || !found.empty(), "nobody sends what is wanted");
      for (const auto& [place, count] : found)
        ensure(count >= elements, "nobody sends an element that is wanted");
    }
    made.receives.push_back(std::move(receive));
  }
}

// Pieces summed up, shared out or put together again over the members that share them.
void ProgramMaker::share(TaskId id, uint32_t index) {
  const Task& task = tasks_[id];
  ProgramTask& made = program_.tasks[id.index()];
  const Movement& movement = tasks_.movements[static_cast<size_t>(task.how)];
  const auto& set = digits(movement.digits);
  const int64_t count = members(task.group);
  std::set<int64_t> done;
  for (int64_t m = 0; m < count; ++m) {
    const Use* source = find(id, UseKind::From, index, m);
    const Use* target = find(id, UseKind::To, index, m);
    ensure(source != nullptr, "a member has nothing to send");
    const Buffer& buffer = tasks_[source->buffer];
    const Region region = region_of(held_.layout(source->buffer), held_.shape(buffer.tensor), m);
    const int64_t elements = element_count(local_shape(region));
    const DType dtype = training_.graph[buffer.tensor].type.dtype;
    const int64_t each = element_bytes(dtype);
    const std::vector<int64_t> peers = peers_of(set, m);
    const Use& where = target != nullptr ? *target : *source;
    const auto slot_of = [&](int64_t member) {
      const Use* use = find(id, UseKind::From, index, member);
      ensure(use != nullptr, "a member has nothing to send");
      return slot(use->buffer, member);
    };
    if (movement.collective == Collective::AllGather) {
      ensure(!where.adds, "what is gathered is not added");
      for (int64_t peer : peers) {
        if (peer == m && target == nullptr) continue;
        const Range theirs = share_of(elements, set, peer);
        const bool flat = buffer.share != 0;
        if (theirs.size() > 0)
          made.copies.push_back({.from = slot_of(peer),
                                 .to = slot(where.buffer, m),
                                 .from_at = flat ? 0 : theirs.begin * each,
                                 .to_at = theirs.begin * each,
                                 .bytes = theirs.size() * each});
      }
      continue;
    }
    const bool scatters = movement.collective == Collective::ReduceScatter;
    const Range mine = scatters ? share_of(elements, set, m) : Range{0, elements};
    const bool in_place = target == nullptr && !scatters;
    if (in_place && done.contains(m)) continue;
    TermSum sum = {.count = mine.size(), .dtype = dtype};
    for (int64_t peer : peers) {
      sum.terms.push_back({.slot = slot_of(peer), .at = mine.begin * each});
      done.insert(peer);
    }
    if (in_place)
      sum.results = sum.terms;
    else
      sum.results = {{.slot = slot(where.buffer, m),
                      .at = target != nullptr && scatters ? 0 : mine.begin * each,
                      .adds = where.adds}};
    made.sums.push_back(std::move(sum));
  }
}

}  // namespace windlass
