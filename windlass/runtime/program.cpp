#include "windlass/runtime/program.h"

#include <algorithm>
#include <map>
#include <set>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/runtime/program_maker.h"

namespace windlass {
ProgramMaker::ProgramMaker(const TrainingGraph& training, const Machine& machine,
                           const TaskGraph& tasks, const std::vector<int32_t>& sample_axes,
                           const RowShape& row)
    : training_(training),
      machine_(machine),
      tasks_(tasks),
      sample_axes_(sample_axes),
      row_(row),
      held_(training, machine, tasks),
      roots_(storage_roots(training.graph)),
      first_update_(training.forward_ops + training.backward_ops) {}

Program ProgramMaker::make() {
  begin();
  for (size_t i = 0; i < tasks_.size(); ++i) make_task(TaskId(i));
  find_bringers();
  return std::move(program_);
}

void ProgramMaker::begin() {
  program_.in_parts = !tasks_.micro_batches.empty();
  program_.steps = row_.steps;
  program_.order = row_.order;
  for (const Task& task : tasks_.tasks)
    program_.micro_batches = std::max(program_.micro_batches, task.micro_batch + 1);
  make_memories();
  make_slots();
  for (const Buffer& buffer : tasks_.buffers)
    program_.rests.push_back(buffer.at_start && buffer.at_end);
  for (const TaskGraph::Carry& carry : tasks_.carried) {
    program_.rests[carry.to.index()] = true;
    for (size_t i = 0; i < program_.slots_of[carry.from.index()].size(); ++i)
      program_.carries.push_back(
          {program_.slots_of[carry.from.index()][i], program_.slots_of[carry.to.index()][i]});
  }
  place();
  program_.tasks.resize(tasks_.size());
}

// The first task that uses data of a later step.
void ProgramMaker::find_bringers() {
  if (row_.brought.empty()) return;
  std::vector<bool> there(tasks_.buffers.size());
  for (size_t i = 0; i < tasks_.size(); ++i)
    for (const Use& use : tasks_.uses_of(TaskId(i))) {
      if (!brought(use.buffer) || there[use.buffer.index()]) continue;
      there[use.buffer.index()] = true;
      program_.tasks[i].brings.push_back(use.buffer);
    }
}

void ProgramMaker::make_memories() {
  for (size_t m = 0; m < tasks_.memories.size(); ++m) {
    const Memory& memory = tasks_.memories[m];
    program_.first_memory.push_back(static_cast<int32_t>(program_.memories.size()));
    if (!memory.team.valid()) {
      for (NodeId host : memory.hosts)
        program_.memories.push_back({MemoryId(m), {}, host, machine_[host].name, memory.limit});
      continue;
    }
    for (DeviceId device : tasks_[memory.team].devices) {
      program_.memories.push_back({MemoryId(m), device, machine_[device].node,
                                   machine_[device].name, machine_[device].limit});
      ++program_.devices;
    }
  }
}

void ProgramMaker::make_slots() {
  for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
    const BufferId id(b);
    const Buffer& buffer = tasks_[id];
    const Memory& memory = tasks_[buffer.memory];
    const int32_t first = program_.first_memory[buffer.memory.index()];
    std::vector<int32_t>& list = program_.slots_of.emplace_back();
    const auto add = [&](int32_t where, int64_t bytes) {
      list.push_back(static_cast<int32_t>(program_.slots.size()));
      program_.slots.push_back({id, where, bytes});
    };
    if (memory.team.valid()) {
      for (size_t d = 0; d < tasks_[memory.team].devices.size(); ++d)
        add(first + static_cast<int32_t>(d), buffer.bytes.value);
      continue;
    }
    // Each different part once.
    const std::vector<int64_t>& holders = held_.members(id);
    std::vector<int64_t> keys;
    for (int64_t member : holders) keys.push_back(held_.key(id, member));
    const auto& group = tasks_.groups[static_cast<size_t>(buffer.group)];
    const auto host_of = [&](int64_t member) {
      const NodeId node = machine_[group[static_cast<size_t>(member)]].node;
      const auto found = std::ranges::find(memory.hosts, node);
      ensure(found != memory.hosts.end(), "a member has another host than its team's buffers");
      return static_cast<int32_t>(found - memory.hosts.begin());
    };
    std::map<int32_t, std::set<int64_t>> different;  // by host: all have as many
    std::map<int64_t, size_t> first_of;              // by key: place in the list
    for (size_t i = 0; i < holders.size(); ++i) different[host_of(holders[i])].insert(keys[i]);
    for (size_t i = 0; i < holders.size(); ++i) {
      const int32_t host = host_of(holders[i]);
      const int64_t each = buffer.bytes.value / static_cast<int64_t>(different[host].size());
      const auto [before, fresh] = first_of.try_emplace(keys[i], list.size());
      if (fresh)
        add(first + host, each);
      else
        list.push_back(list[before->second]);
    }
  }
}

// Slots are in the order of the team's devices on devices, of the members on hosts.
int32_t ProgramMaker::slot(BufferId id, int64_t member) const {
  const Holdings::Members& holders = held_.holders(id);
  ensure(holders.contains(member), "a buffer holds nothing for this member");
  const bool on_device = tasks_[tasks_[id].memory].team.valid();
  const auto at = static_cast<size_t>(member);
  return program_.slots_of[id.index()]
                          [static_cast<size_t>(on_device ? holders.device[at] : holders.order[at])];
}

void ProgramMaker::place() {
  program_.placed.resize(tasks_.buffers.size());
  std::vector<bool> done(program_.slots.size());
  for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
    const BufferId id(b);
    if (!tasks_[id].at_start && !brought(id)) continue;
    for (int64_t member : held_.members(id)) {
      const int32_t where = slot(id, member);
      if (done[static_cast<size_t>(where)]) continue;
      done[static_cast<size_t>(where)] = true;
      Region region = region_of(held_.layout(id),
                                held_.shape(tasks_[id].tensor, tasks_[id].micro_batch), member);
      const Range mine = held_.share(id, member, element_count(local_shape(region)));
      program_.placed[b].push_back({where, std::move(region), mine});
    }
  }
}

void ProgramMaker::make_task(TaskId id) {
  const Task& task = tasks_[id];
  ProgramTask& made = program_.tasks[id.index()];
  made.kind = task.kind;
  made.op = task.op;
  made.micro_batch = task.micro_batch;
  made.begins = task.begins;
  if (task.kind == TaskKind::Compress || task.kind == TaskKind::Decompress) made.bits = task.how;
  if (exchanges(task.kind))
    exchange(id);
  else
    make_parts(id);
  // What several members have on a host they bring there together.
  const bool together =
      (moves(task.kind) || task.kind == TaskKind::HostUpdate) && made.parts.size() != 1;
  made.apart = tasks_[tasks_.lanes_of(id)[0]].kind == LaneKind::Compute && !together;
}

// Teams on one host share its lane: what is done there is done for those that the buffers are of.
TeamId ProgramMaker::team_of(TaskId id) const {
  const Lane& lane = tasks_[tasks_.lanes_of(id)[0]];
  if (lane.kind != LaneKind::Host) return lane.team;
  // Packs have one copy for all teams.
  const auto& group = tasks_.groups[static_cast<size_t>(tasks_[id].group)];
  for (const Use& use : tasks_.uses_of(id)) {
    const TeamId team = tasks_[use.buffer].team;
    if (team.valid() && std::ranges::find(group, tasks_[team].devices[0]) != group.end())
      return team;
  }
  return lane.team;
}

void ProgramMaker::make_parts(TaskId id) {
  const Task& task = tasks_[id];
  ProgramTask& made = program_.tasks[id.index()];
  const TeamId team = team_of(id);
  const int32_t first = program_.first_memory[tasks_[team].memory.index()];
  const Holdings::Members& members = held_.team_members(team, task.group);
  made.parts.reserve(members.list.size());
  for (int64_t member : members.list) {
    Part& part = made.parts.emplace_back();
    part.member = member;
    part.memory = first + static_cast<int32_t>(members.device[static_cast<size_t>(member)]);
  }
  switch (task.kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute:
    case TaskKind::Backward:
      for (Part& part : made.parts) {
        const bool adds_up =
            !task.op.valid() || training_.graph[task.op].kind == OpKind::Accumulate;
        adds_up ? sum(id, part) : compute(id, part);
      }
      break;
    case TaskKind::Compress:
    case TaskKind::Decompress:
      for (Part& part : made.parts) compress(id, part);
      break;
    case TaskKind::Update:
    case TaskKind::HostUpdate:
      for (Part& part : made.parts) update(id, part);
      break;
    case TaskKind::Norm:
      for (Part& part : made.parts) squares(id, part);
      break;
    default: copy(id);
  }
}

ProgramMaker::Seen ProgramMaker::see(const Use& use, int64_t member) const {
  const Buffer& buffer = tasks_[use.buffer];
  ensure(buffer.share == 0, "a share is read as a tensor");
  Seen seen;
  seen.operand.slot = slot(use.buffer, member);
  seen.region = held_.region(use.buffer, member);
  TensorId tensor = buffer.tensor;
  seen.operand.type = {training_.graph[tensor].type.dtype, local_shape(seen.region)};
  std::vector<const View*> chain;
  for (int32_t v = use.view; v >= 0; v = chain.back()->of)
    chain.push_back(&tasks_.views[static_cast<size_t>(v)]);
  for (size_t i = chain.size(); i-- > 0;) {
    const View& view = *chain[i];
    Region part = held_.region(tasks_.layouts[static_cast<size_t>(view.layout)], view.tensor,
                               buffer.micro_batch, member);
    TensorType type = {seen.operand.type.dtype, local_shape(part)};
    if (view.tensor == tensor) {
      const Overlap overlap(seen.region, part);
      ensure(overlap.elements() == element_count(type.shape),
             "a member is asked for elements that it does not have");
      if (overlap.contiguous_from() >= 0 && seen.operand.cuts.empty())
        seen.operand.offset += overlap.contiguous_from() * element_bytes(type.dtype);
      else if (!overlap.same())
        seen.operand.cuts.push_back({overlap, type});
    } else {
      ensure(element_count(type.shape) == element_count(seen.operand.type.shape),
             "a view has other elements than what it is a view of");
      if (!seen.operand.cuts.empty()) seen.operand.cuts.back().type = type;
    }
    seen.operand.type = type;
    seen.region = std::move(part);
    tensor = view.tensor;
  }
  return seen;
}

Operand ProgramMaker::operand(const Use& use, int64_t member, const Region& wanted) const {
  Seen seen = see(use, member);
  ensure(seen.region == wanted, "an operand is not the part that the op wants");
  return std::move(seen.operand);
}

int32_t ProgramMaker::piece(TaskId id, int64_t member) {
  const Task& task = tasks_[id];
  const TrainingGraph& sized = training_.of(task.micro_batch);
  const Op& op = sized.graph[task.op];
  const OpId forward = op.forward.valid() ? op.forward : task.op;
  const OpKind kind = sized.graph[forward].kind;
  const bool draws = kind == OpKind::Attention || kind == OpKind::Dropout || kind == OpKind::Random;
  const int32_t alike = &sized == &training_ ? -1 : -2;
  const int32_t micro_batch = program_.in_parts || draws ? task.micro_batch : alike;
  const size_t step = program_.step_of(id);
  const auto [entry, fresh] =
      pieces_.try_emplace({forward.value, task.how, member, micro_batch, step},
                          static_cast<int32_t>(program_.pieces.size()));
  if (!fresh) return entry->second;
  const LoopNest nest = loops_of(sized.graph, op);
  std::vector<LoopPart> loops =
      loop_parts(nest, tasks_.shardings[static_cast<size_t>(task.how)], member);
  if (program_.in_parts)
    take_samples(held_.samples(), forward, nest,
                 tasks_.micro_batches[static_cast<size_t>(task.micro_batch)], loops);
  ProgramPiece made = {.piece = piece_of(signature_of(sized.graph, op), nest, loops),
                       .forward = forward,
                       .step = static_cast<int32_t>(step)};
  if (!program_.in_parts)
    place_in_batch(training_, forward, task.micro_batch, program_.micro_batches, sample_axes_,
                   made.piece.facts);
  program_.pieces.push_back(std::move(made));
  return entry->second;
}

void ProgramMaker::compute(TaskId id, Part& part) {
  const Task& task = tasks_[id];
  const Op& op = training_.graph[task.op];
  const Graph& graph = training_.graph;
  part.piece = piece(id, part.member);
  ProgramPiece& run = program_.pieces[static_cast<size_t>(part.piece)];
  const OpPiece& piece = run.piece;
  const bool backward = op.forward.valid();
  const size_t gradients = backward ? op.inputs.size() - op.saved.size() : 0;
  part.reads.resize(op.inputs.size());
  part.writes.resize(op.outputs.size() + (backward ? 0 : op.auxiliaries.size()));
  const auto region_of_input = [&](size_t i) -> const Region& {
    if (!backward) return piece.input_regions[i];
    if (i < gradients) return piece.output_regions[i];
    const SavedRef& ref = op.saved[i - gradients];
    const auto& regions = ref.source == SavedRef::Source::Input    ? piece.input_regions
                          : ref.source == SavedRef::Source::Output ? piece.output_regions
                                                                   : piece.auxiliary_regions;
    return regions[static_cast<size_t>(ref.index)];
  };
  for (const Use& use : tasks_.uses_of(id)) {
    const size_t i = use.index;
    if (use.kind == UseKind::Input) {
      part.reads[i] = operand(use, part.member, region_of_input(i));
    } else if (use.kind == UseKind::Statistics) {
      part.statistics.slot = slot(use.buffer, part.member);
      const Exchange exchange =
          exchange_of(piece, op.pass, backward ? wanted_of(op) : std::vector<bool>{});
      part.statistics.type = exchange.type;
      if (task.begins) begun_[{use.buffer.value, part.member}] = exchange;
    } else {
      const bool output = use.kind == UseKind::Output;
      const size_t at = output ? i : op.outputs.size() + i;
      const Region& region = backward ? piece.input_regions[i]
                             : output ? piece.output_regions[i]
                                      : piece.auxiliary_regions[i];
      ensure(held_.region(use.buffer, part.member) == region,
             "a result is not the part that its buffer is for");
      const TensorId tensor = output ? op.outputs[i] : op.auxiliaries[i];
      part.writes[at] = {.slot = slot(use.buffer, part.member),
                         .type = {graph[tensor].type.dtype, local_shape(region)},
                         .adds = use.adds};
      const Layout& layout = held_.layout(use.buffer);
      const int64_t place = partial_place(layout, part.member);
      if (output && !backward) run.count = place == 0 ? 1 : 0;
      if (!output || task.kind != TaskKind::Forward || tensor != roots_[graph.loss.index()])
        continue;
      // The first member that holds this part of the loss.
      part.counts_loss = true;
      for (int64_t before = 0; before < part.member; ++before)
        if (partial_place(layout, before) == place) part.counts_loss = false;
    }
  }
  if (task.begins) part.allocates = {part.statistics.slot};
}

// Terms that lie alike, or of which the sum is a share.
void ProgramMaker::sum(TaskId id, Part& part) const {
  const Use* target = nullptr;
  for (const Use& use : tasks_.uses_of(id))
    if (use.kind == UseKind::Sum) target = &use;
  ensure(target != nullptr, "a sum goes nowhere");
  const Buffer& buffer = tasks_[target->buffer];
  const Region region = held_.region(target->buffer, part.member);
  const DType dtype = training_.graph[buffer.tensor].type.dtype;
  const Range mine = held_.share(target->buffer, part.member, element_count(local_shape(region)));
  const Shape local = buffer.share != 0 ? Shape{mine.size()} : local_shape(region);
  for (const Use& use : tasks_.uses_of(id)) {
    if (use.kind != UseKind::Term) continue;
    Operand term = operand(use, part.member, region);
    if (buffer.share != 0) {
      ensure(term.cuts.empty(), "a share of a part that is not dense");
      term.offset += mine.begin * element_bytes(dtype);
      term.type = {term.type.dtype, local};
    }
    part.reads.push_back(std::move(term));
  }
  part.writes = {
      {.slot = slot(target->buffer, part.member), .type = {dtype, local}, .adds = target->adds}};
}

void ProgramMaker::compress(TaskId id, Part& part) const {
  const bool packs = tasks_[id].kind == TaskKind::Compress;
  part.reads.resize(1);
  part.writes.resize(1);
  for (const Use& use : tasks_.uses_of(id)) {
    const TensorId tensor = tasks_[use.buffer].tensor;
    const bool large = (use.kind == UseKind::From) == packs;
    Operand& operand = use.kind == UseKind::From ? part.reads[0] : part.writes[0];
    operand.slot = slot(use.buffer, part.member);
    if (large)
      operand.type = {training_.graph[tensor].type.dtype,
                      local_shape(held_.region(use.buffer, part.member))};
  }
  part.allocates = {part.writes[0].slot};
}

Program make_program(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
                     const std::vector<int32_t>& sample_axes, const RowShape& row) {
  return ProgramMaker(training, machine, tasks, sample_axes, row).make();
}

}  // namespace windlass
