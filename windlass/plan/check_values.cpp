// Ops and the tensors they read and write.

#include <algorithm>

#include "windlass/plan/checker.h"

namespace windlass {

bool Checker::each_micro_batch(TensorId tensor) const {
  const Tensor& t = training_.graph[facts_.roots[tensor.index()]];
  return t.producer.valid() || t.role == TensorRole::Input || t.role == TensorRole::Label;
}

bool Checker::holds(BufferId id, TensorId tensor, int32_t micro_batch) const {
  const Buffer& buffer = graph_[id];
  if (facts_.roots[buffer.tensor.index()] != facts_.roots[tensor.index()]) return false;
  return !each_micro_batch(tensor) || buffer.micro_batch == micro_batch;
}

void Checker::take(Held& to, const Held& from) {
  to = from;
  to.there = true;
}

// Weights are there from the start, before any op says which group it wants them on.
int32_t Checker::group_of(BufferId id) const {
  const TeamId team = graph_[graph_[id].memory].team;
  if (!team.valid()) return -1;
  for (size_t g = 0; g < strategy_.groups.size(); ++g)
    if (std::ranges::find(strategy_.groups[g], graph_[team].devices.front()) !=
        strategy_.groups[g].end())
      return static_cast<int32_t>(g);
  return -1;
}

// Whether what is held is what `layout` asks for. If it was on its way there, it has arrived.
bool Checker::settle(Held& held, BufferId id, int32_t layout, int32_t group) {
  const TensorType& type = training_.graph[held.tensor].type;
  if (group < 0) group = held.group >= 0 ? held.group : group_of(id);
  if (group < 0) {
    reason_ = fmt::format("{} lies on no group", name(id));
    return false;
  }
  if (graph_[id].bytes.value < layouts_.bytes(type, layout)) {
    reason_ =
        fmt::format("{} has {} bytes, too few for {} of \"{}\"", name(id), graph_[id].bytes.value,
                    format_layout(layouts_[layout]), name(held.tensor));
    return false;
  }
  if (held.layout >= 0 && held.steps == 0) {
    if (held.group >= 0 && group >= 0 && held.group != group) {
      reason_ = fmt::format("{} lies on group {}, not {}", name(id), held.group, group);
      return false;
    }
    if (layouts_.fits(type.shape, held.layout, layout, members(group))) return true;
    reason_ = fmt::format("{} holds \"{}\" as {}, wanted as {}", name(id), name(held.tensor),
                          format_layout(layouts_[held.layout]), format_layout(layouts_[layout]));
    return false;
  }
  if (held.layout >= 0) {
    const auto arrives = [&](int32_t from, int32_t steps) {
      const int64_t senders = members(held.group >= 0 ? held.group : group);
      return from >= 0 && layouts_.moves(type.shape, from, senders, layout, members(group),
                                         held.crossed) == steps;
    };
    // Moves that were not needed do no harm.
    const bool there =
        !held.crossed && layouts_.fits(type.shape, held.layout, layout, members(group));
    if (!there && !arrives(held.layout, held.steps) && !arrives(held.before, held.before_steps)) {
      reason_ =
          fmt::format("{} is {} moves from {}, which does not make it {}", name(id), held.steps,
                      format_layout(layouts_[held.layout]), format_layout(layouts_[layout]));
      return false;
    }
  }
  held.layout = layout;
  held.group = group;
  held.steps = held.before_steps = 0;
  held.before = -1;
  held.crossed = false;
  return true;
}

std::optional<Checker::Held> Checker::see_as(Held& held, BufferId id, TensorId tensor,
                                             int32_t group) {
  std::vector<const Op*> views;
  for (TensorId at = tensor; at != held.tensor;) {
    const OpId producer = training_.graph[at].producer;
    if (!producer.valid() || !facts_.view(training_.graph[producer])) {
      reason_ = fmt::format("{} holds \"{}\", of which \"{}\" is no view", name(id),
                            name(held.tensor), name(tensor));
      return std::nullopt;
    }
    views.push_back(&training_.graph[producer]);
    at = views.back()->inputs[0];
  }
  Held* seen = &held;
  std::optional<Held> copy;
  for (size_t v = views.size(); v-- > 0;) {
    const Op& op = *views[v];
    const bool backward = op.pass == Pass::Backward;
    const OpId self(static_cast<size_t>(&op - training_.graph.ops.data()));
    const OpLayouts& layouts = layouts_.of(backward ? op.forward : self);
    if (!settle(*seen, id, backward ? layouts.output_gradients[0] : layouts.inputs[0],
                seen->group >= 0 && !seen->crossed ? seen->group : group))
      return std::nullopt;
    Held next = *seen;
    next.tensor = op.outputs[0];
    next.layout = backward ? layouts.input_gradients[0] : layouts.outputs[0];
    copy = next;
    seen = &*copy;
  }
  return *seen;
}

bool Checker::fit(Held& held, BufferId id, TensorId tensor, int32_t layout, int32_t group) {
  if (held.tensor == tensor) return settle(held, id, layout, group);
  std::optional<Held> seen = see_as(held, id, tensor, group);
  return seen && settle(*seen, id, layout, group);
}

bool Checker::reads(TaskId id, TensorId tensor, int32_t layout, int32_t group, bool complains) {
  reason_.clear();
  for (const Use& use : graph_.uses_of(id)) {
    if (graph_[use.buffer].memory != memory_of(id) ||
        !holds(use.buffer, tensor, graph_[id].micro_batch))
      continue;
    Held& held = held_[use.buffer.index()];
    if (!held.there) continue;  // said already
    if (!fit(held, use.buffer, tensor, layout, group)) continue;
    operands_.push_back(use.buffer);
    if (held.version != Held::Version::Old)
      complain("{}: reads weight \"{}\" after its update", name(id), name(tensor));
    return true;
  }
  if (complains)
    complain("{}: does not read \"{}\" as {}{}{}", name(id), name(tensor),
             format_layout(layouts_[layout]), reason_.empty() ? "" : ": ", reason_);
  return false;
}

void Checker::writes(TaskId id, TensorId tensor, int32_t layout, int32_t group) {
  for (const Use& use : graph_.uses_of(id)) {
    const Buffer& buffer = graph_[use.buffer];
    if (!use.write || buffer.tensor != tensor || buffer.micro_batch != graph_[id].micro_batch ||
        buffer.memory != memory_of(id))
      continue;
    operands_.push_back(use.buffer);
    Held& held = held_[use.buffer.index()];
    if (held.there) complain("{}: overwrites {}", name(id), name(use.buffer));
    if (const int64_t size = layouts_.bytes(training_.graph[tensor].type, layout);
        buffer.bytes.value != size)
      complain("{}: {} has {} bytes, \"{}\" as {} takes {}", name(id), name(use.buffer),
               buffer.bytes.value, name(tensor), format_layout(layouts_[layout]), size);
    take(held, {.tensor = tensor, .layout = layout, .group = group});
    return;
  }
  complain("{}: does not write \"{}\"", name(id), name(tensor));
}

// Every member is priced as the one with most, so that together they do no less than the op.
void Checker::check_work(TaskId id, int32_t group) {
  const Op& op = training_.graph[graph_[id].op];
  // A kernel that knows its mask skips what is masked.
  if (const auto* attention = std::get_if<AttentionAttrs>(&op.attrs))
    if (attention->causal || attention->window > 0) return;
  double done = 0;
  for (const Kernel& kernel : graph_.works[static_cast<size_t>(graph_[id].price)].kernels)
    done += kernel.multiply_adds;
  const double wanted = arithmetic_of(training_.graph, op).multiply_adds;
  if (done * static_cast<double>(members(group)) < wanted * (1 - 1e-6))
    complain("{}: {} multiply-adds on each of {} devices, the op has {}", name(id), done,
             members(group), wanted);
}

void Checker::compute(TaskId id) {
  const Task& task = graph_[id];
  const bool backward = task.kind == TaskKind::Backward;
  const bool known = task.op.valid() && (backward || task.op.index() < training_.forward_ops) &&
                     !facts_.view(training_.graph[task.op]) && task.micro_batch >= 0;
  if (!known) return complain("{}: carries out no op of its pass", name(id));
  const Op& op = training_.graph[task.op];
  const int32_t group = group_of(task.op, task.kind != TaskKind::Forward);
  const auto& teams = teams_[static_cast<size_t>(group)];
  const auto lanes = graph_.lanes_of(id);
  if (lanes.size() != 1 || graph_[lanes[0]].kind != LaneKind::Compute ||
      std::ranges::find(teams, team_of(id)) == teams.end())
    complain("{}: is not on a compute lane of group {}", name(id), group);
  check_work(id, group);
  const OpLayouts& layouts = layouts_.of(backward ? op.forward : task.op);
  operands_.clear();
  if (!backward) {
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i].valid()) reads(id, op.inputs[i], layouts.inputs[i], group);
    for (size_t i = 0; i < op.outputs.size(); ++i)
      if (op.outputs[i].valid()) writes(id, op.outputs[i], layouts.outputs[i], group);
    for (size_t i = 0; i < op.auxiliaries.size(); ++i)
      if (op.auxiliaries[i].valid()) writes(id, op.auxiliaries[i], layouts.auxiliaries[i], group);
  } else {
    const size_t gradients = op.inputs.size() - op.saved.size();
    for (size_t i = 0; i < gradients; ++i)
      if (op.inputs[i].valid()) reads(id, op.inputs[i], layouts.output_gradients[i], group);
    for (size_t s = 0; s < op.saved.size(); ++s) {
      const TensorId tensor = op.inputs[gradients + s];
      const auto index = static_cast<size_t>(op.saved[s].index);
      const auto& list = op.saved[s].source == SavedRef::Source::Input    ? layouts.inputs
                         : op.saved[s].source == SavedRef::Source::Output ? layouts.outputs
                                                                          : layouts.auxiliaries;
      if (tensor.valid()) reads(id, tensor, list[index], group);
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (!op.outputs[i].valid()) continue;
      if (facts_.direct[op.outputs[i].index()])
        add_to_sum(id, op.outputs[i], layouts.input_gradients[i], group);
      else
        writes(id, op.outputs[i], layouts.input_gradients[i], group);
    }
  }
  for (const Use& use : graph_.uses_of(id))
    if (std::ranges::find(operands_, use.buffer) == operands_.end())
      complain("{}: uses {}, which is none of its operands", name(id), name(use.buffer));
}

// A sum of two gradients, as they are if they lie alike, else both as copies where they are
// partial.
void Checker::sum(TaskId id) {
  const Task& task = graph_[id];
  const Op& op = training_.graph[task.op];
  if (op.kind != OpKind::Accumulate || facts_.dropped[task.op.index()])
    return complain("{}: carries out no op of its pass", name(id));
  const int32_t group = group_of(task.op, true);
  std::vector<int32_t> targets;
  std::vector<std::pair<Held, BufferId>> seen;
  for (TensorId input : op.inputs)
    for (const Use& use : graph_.uses_of(id)) {
      if (use.write || !holds(use.buffer, input, task.micro_batch)) continue;
      Held trial = held_[use.buffer.index()];
      if (const auto found = see_as(trial, use.buffer, input, group)) {
        seen.emplace_back(*found, use.buffer);
        break;
      }
    }
  if (seen.size() != op.inputs.size())
    return complain("{}: does not read both of its terms", name(id));
  const Held &a = seen[0].first, &b = seen[1].first;
  if (a.steps == 0 && b.steps == 0 && a.layout == b.layout && a.layout >= 0)
    targets.push_back(a.layout);
  for (const Held* term : {&a, &b})
    if (term->steps == 0 && term->layout >= 0) targets.push_back(layouts_.settled(term->layout));
  targets.push_back(layouts_.copies(members(group)));
  for (int32_t target : targets) {
    const bool all = std::ranges::all_of(seen, [&](const auto& term) {
      Held trial = term.first;
      return settle(trial, term.second, target, group);
    });
    if (!all) continue;
    operands_.clear();
    for (TensorId input : op.inputs) reads(id, input, target, group);
    return writes(id, op.outputs[0], target, group);
  }
  complain("{}: its terms lie differently: {}", name(id), reason_);
}

const Use* Checker::source_of(TaskId id, const Buffer& target, TensorId tensor) {
  const Use* found = nullptr;
  for (const Use& use : graph_.uses_of(id)) {
    if (use.write) continue;
    const bool gradient = graph_[use.buffer].kind == BufferKind::WeightGradient;
    const auto& updates = facts_.updates_of[graph_[use.buffer].tensor.index()];
    const bool same =
        gradient ? updates == facts_.updates_of[tensor.index()] ||
                       std::ranges::any_of(
                           updates, [&](int32_t u) { return update_op(u).inputs[1] == tensor; })
                 : holds(use.buffer, tensor, graph_[id].micro_batch);
    if (!same) continue;
    if (!found || graph_[use.buffer].memory == target.memory) found = &use;
  }
  return found;
}

void Checker::move_on(Held& held, bool in_place, bool crosses) {
  if (in_place && held.steps == 0 && held.layout >= 0) {
    held.before = held.layout;
    held.before_steps = 1;
    held.layout = layouts_.settled(held.layout);
    held.reduced = true;
    return;
  }
  ++held.steps;
  if (held.before >= 0) ++held.before_steps;
  held.crossed = held.crossed || crosses;
}

// One move of a tensor towards another layout.
void Checker::redistribute(TaskId id) {
  const Task& task = graph_[id];
  if (!task.tensor.valid()) return complain("{}: moves nothing", name(id));
  const auto uses = graph_.uses_of(id);
  const bool in_place = std::ranges::all_of(uses, [](const Use& use) { return use.write; });
  const bool crosses = task.kind == TaskKind::Send;
  for (const Use& use : uses) {
    if (!use.write) continue;
    const Buffer& target = graph_[use.buffer];
    const Use* source = in_place ? &use : source_of(id, target, task.tensor);
    if (!source) {
      complain("{}: writes {} without reading it anywhere", name(id), name(use.buffer));
      continue;
    }
    Held& from = held_[source->buffer.index()];
    const bool gradient = graph_[source->buffer].kind == BufferKind::WeightGradient;
    std::optional<Held> seen = from;
    if (gradient)
      seen->tensor = task.tensor;
    else
      seen = see_as(from, source->buffer, task.tensor,
                    from.group >= 0 ? from.group : group_of(source->buffer));
    const bool right = seen && (gradient || holds(use.buffer, task.tensor, task.micro_batch));
    if (!right) {
      complain("{}: {} is not of this tensor", name(id), name(use.buffer));
      continue;
    }
    if (in_place && !from.there)
      complain("{}: combines {}, which nobody has written", name(id), name(use.buffer));
    if (in_place && seen->steps == 0 && seen->layout >= 0 && !layouts_.partial(seen->layout))
      complain("{}: combines {}, which holds no partial sums", name(id), name(use.buffer));
    if (!in_place && held_[use.buffer.index()].there)
      complain("{}: overwrites {}", name(id), name(use.buffer));
    move_on(*seen, in_place, crosses);
    take(held_[use.buffer.index()], *seen);
  }
}

// What the pieces of an op exchange becomes part of all of its results, on every team.
void Checker::exchange(TaskId id) {
  const Task& task = graph_[id];
  const Op& op = training_.graph[task.op];
  const auto uses = graph_.uses_of(id);
  const auto lanes = graph_.lanes_of(id);
  std::set<BufferId> found;
  for (LaneId lane : lanes) {
    const MemoryId memory = graph_[graph_[lane].team].memory;
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId tensor : *list) {
        if (!tensor.valid()) continue;
        const auto& updates = facts_.updates_of[tensor.index()];
        const bool sum = op.pass == Pass::Backward && facts_.direct[tensor.index()];
        const auto use = std::ranges::find_if(uses, [&](const Use& other) {
          const Buffer& buffer = graph_[other.buffer];
          const bool right =
              sum ? buffer.kind == BufferKind::WeightGradient &&
                        (buffer.micro_batch < 0 || buffer.micro_batch == task.micro_batch) &&
                        belongs(other.buffer, updates[0])
                  : buffer.tensor == tensor && buffer.micro_batch == task.micro_batch;
          return right && other.write && buffer.memory == memory &&
                 held_[other.buffer.index()].there;
        });
        if (use == uses.end())
          complain("{}: leaves out \"{}\" on {}", name(id), name(tensor), graph_[memory].name);
        else
          found.insert(use->buffer);
      }
  }
  for (const Use& use : uses)
    if (!found.contains(use.buffer))
      complain("{}: uses {}, which is none of its results", name(id), name(use.buffer));
}

// To the host or to fewer bits, and back.
void Checker::stash(TaskId id) {
  const Task& task = graph_[id];
  const bool out = task.kind == TaskKind::SwapOut || task.kind == TaskKind::Compress;
  const auto uses = graph_.uses_of(id);
  if (uses.size() != 2 || uses[0].write || !uses[1].write || !task.tensor.valid())
    return complain("{}: is no copy of one buffer", name(id));
  const BufferId from = uses[0].buffer, to = uses[1].buffer;
  const Buffer& source = graph_[from];
  const Buffer& target = graph_[to];
  if (!holds(from, task.tensor, task.micro_batch) || !holds(to, task.tensor, task.micro_batch))
    complain("{}: copies {} to {}", name(id), name(from), name(to));
  const int32_t saved = saved_index_[task.tensor.index()];
  const MemoryAction action =
      saved < 0 ? MemoryAction::Keep : strategy_.saved[static_cast<size_t>(saved)];
  const bool compresses = task.kind == TaskKind::Compress || task.kind == TaskKind::Decompress;
  if (compresses ? compressed_bits(action) == 0 : action != MemoryAction::Offload)
    complain("{}: \"{}\" is to be {}", name(id), name(task.tensor), action_name(action));
  const Buffer& device = out ? source : target;
  const Buffer& stored = out ? target : source;
  int64_t least = device.bytes.value;
  if (compresses) {
    least = least / element_bytes(training_.graph[task.tensor].type.dtype) *
            compressed_bits(action) / 8;
  } else if (on_host(out ? to : from)) {
    const NodeId node = graph_[stored.memory].hosts.front();
    const auto here = std::ranges::count_if(graph_[team_of(id)].devices,
                                            [&](DeviceId d) { return machine_[d].node == node; });
    least *= std::max<int64_t>(1, here);
  }
  if (stored.bytes.value < least)
    complain("{}: {} has {} bytes, {} are needed", name(id), name(out ? to : from),
             stored.bytes.value, least);
  if (held_[to.index()].there) complain("{}: overwrites {}", name(id), name(to));
  Held content = held_[from.index()];
  if (!out) content.group = -1;
  take(held_[to.index()], content);
}

}  // namespace windlass
