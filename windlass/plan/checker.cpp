#include "windlass/plan/checker.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/task/lower.h"

namespace windlass {

Checker::Checker(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
                 const TaskGraph& graph)
    : training_(training),
      machine_(machine),
      strategy_(strategy),
      graph_(graph),
      first_update_(training.forward_ops + training.backward_ops),
      layouts_(training, strategy),
      moves_(machine, strategy.groups, layouts_) {
  const Graph& ops = training.graph;
  kinds_ = size_kinds(strategy);
  for (const auto& group : strategy.groups)
    same_group_.push_back(
        static_cast<int32_t>(std::ranges::find(strategy.groups, group) - strategy.groups.begin()));
  stage_of_ = stage_of_ops(strategy, training.forward_ops);
  stage_of_.resize(ops.ops.size(), 0);
  for (size_t i = training.forward_ops; i < first_update_; ++i) {
    // A sum of gradients is made where its last term comes from: the earliest stage.
    int32_t stage = INT32_MAX;
    if (const OpId forward = ops.ops[i].forward; forward.valid())
      stage = stage_of_[forward.index()];
    else
      for (TensorId id : ops.ops[i].inputs)
        if (id.valid() && ops[id].producer.valid() &&
            ops[id].producer.index() >= training.forward_ops)
          stage = std::min(stage, stage_of_[ops[id].producer.index()]);
    stage_of_[i] = stage == INT32_MAX ? 0 : stage;
  }
  update_of_.assign(ops.tensors.size(), -1);
  gradients_.assign(ops.tensors.size(), false);
  for (size_t i = first_update_; i < ops.ops.size(); ++i) {
    update_of_[ops.ops[i].inputs[0].index()] = static_cast<int32_t>(i - first_update_);
    gradients_[ops.ops[i].inputs[1].index()] = true;
  }
  const std::vector<TensorId> storage = storage_roots(ops);
  std::vector<int32_t> by_storage(storage.size(), -1);
  for (size_t i = 0; i < training.saved.size(); ++i)
    by_storage[training.saved[i].tensor.index()] = static_cast<int32_t>(i);
  for (TensorId root : storage) saved_of_.push_back(by_storage[root.index()]);
  for (size_t t = 0; t < ops.tensors.size(); ++t)
    tensors_.push_back(Hasher().add(static_cast<int64_t>(t)).result() | 1);
  for (const Op& op : ops.ops)
    if (op.kind == OpKind::Accumulate)
      tensors_[op.outputs[0].index()] =
          tensors_[op.inputs[0].index()] + tensors_[op.inputs[1].index()];
  updated_.resize(ops.ops.size() - first_update_);
  shared_.assign(updated_.size(), -1);
}

uint64_t Checker::number(int32_t micro_batch) const {
  return Hasher().add(int64_t{7}).add(micro_batch).result() | 1;
}

std::vector<std::string> Checker::run() {
  check_pieces();
  if (check_graph() && check_teams()) {
    held_.resize(graph_.buffers.size());
    users_.resize(graph_.buffers.size());
    begun_.resize(graph_.buffers.size(), 0);
    check_carried();
    bool right = true;
    for (size_t b = 0; b < held_.size(); ++b) right = check_buffer(BufferId(b)) && right;
    clock_.emplace(graph_);
    for (size_t i = 0; right && i < graph_.size() && findings_.size() < kMost; ++i)
      look_at(TaskId(i));
    layouts_.turn_to(-1);
    if (right && findings_.size() < kMost) {
      check_coverage();
      check_updates();
    }
  }
  if (count_ > findings_.size()) findings_.push_back("and more");
  return std::move(findings_);
}

void Checker::look_at(TaskId id) {
  clock_->enter(id);
  layouts_.turn_to(graph_[id].micro_batch);
  for (const Use& use : graph_.uses_of(id)) {
    const Users& users = users_[use.buffer.index()];
    const auto after = [&](TaskId other, const char* what) {
      if (other == id || clock_->before(other)) return;
      complain("{}: {} {} without waiting for {}", name(id), what, name(use.buffer), name(other));
    };
    if (users.writer.valid()) after(users.writer, use.write ? "writes" : "reads");
    if (use.write)
      for (TaskId reader : users.readers) after(reader, "overwrites");
  }
  visit(id);
  for (const Use& use : graph_.uses_of(id)) {
    Users& users = users_[use.buffer.index()];
    if (use.write) {
      users.writer = id;
      users.readers.clear();
    } else if (users.readers.empty() || users.readers.back() != id) {
      users.readers.push_back(id);
    }
  }
  clock_->leave(id);
}

void Checker::visit(TaskId id) {
  if (!uses_statistics_rightly(id)) return;
  const Task& task = graph_[id];
  switch (task.kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute: return compute(id);
    case TaskKind::Backward:
      return task.op.valid() && training_.graph[task.op].forward.valid() ? compute(id) : sum(id);
    case TaskKind::Update:
    case TaskKind::HostUpdate: return update(id);
    case TaskKind::Norm: return add_squares(id);
    case TaskKind::Collective: return task.op.valid() ? exchange(id) : move(id);
    case TaskKind::Send: return move(id);
    case TaskKind::Reduce:
    case TaskKind::Gather: return share(id);
    case TaskKind::Compress:
    case TaskKind::Decompress:
    case TaskKind::SwapOut:
    case TaskKind::SwapIn: return copy(id);
    case TaskKind::Join: return complain("{}: is of packs of layers", name(id));
  }
}

// That everything that is told by a number is there.
bool Checker::check_graph() {
  try {
    check_task_graph(graph_);
  } catch (const Error& error) {
    complain("{}", error.message());
    return false;
  }
  const Graph& ops = training_.graph;
  for (size_t i = 0; i < graph_.size(); ++i) {
    const Task& task = graph_.tasks[i];
    for (TaskId before : graph_.predecessors_of(TaskId(i)))
      if (before.index() >= i) complain("task {} waits for task {}, a later one", i, before.value);
    if (task.op.valid() && task.op.index() >= ops.ops.size())
      complain("task {} carries out op {} of {}", i, task.op.value, ops.ops.size());
    if (task.tensor.valid() && task.tensor.index() >= ops.tensors.size())
      complain("task {} moves tensor {} of {}", i, task.tensor.value, ops.tensors.size());
    if (task.micro_batch < -1 || task.micro_batch >= strategy_.micro_batches)
      complain("task {} is of micro-batch {} of {}", i, task.micro_batch, strategy_.micro_batches);
    if (!in(task.group, graph_.groups))
      complain("task {} is of group {} of {}", i, task.group, graph_.groups.size());
    for (const Use& use : graph_.uses_of(TaskId(i)))
      if (use.view >= 0 && !in(use.view, graph_.views))
        complain("task {} reads view {} of {}", i, use.view, graph_.views.size());
  }
  for (size_t b = 0; b < graph_.buffers.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    const bool statistics = are_statistics(BufferId(b));
    if (!statistics && buffer.tensor.index() >= ops.tensors.size())
      complain("buffer {} holds tensor {} of {}", b, buffer.tensor.value, ops.tensors.size());
    if (!in(buffer.group, graph_.groups) || !in(buffer.share, graph_.digit_sets) ||
        (!statistics && !in(buffer.layout, graph_.layouts)))
      complain("buffer {} has no group, layout or share", b);
  }
  for (size_t v = 0; v < graph_.views.size(); ++v) {
    const View& seen = graph_.views[v];
    if (seen.of >= static_cast<int32_t>(v) || !seen.tensor.valid() ||
        seen.tensor.index() >= ops.tensors.size() || !in(seen.layout, graph_.layouts))
      complain("view {} is one of nothing", v);
  }
  for (const Layout& layout : graph_.layouts) layout_ids_.push_back(layouts_.intern(layout));
  for (const auto& digits : graph_.digit_sets) set_ids_.push_back(layouts_.intern(digits));
  for (const auto& group : graph_.groups) {
    const auto found = std::ranges::find(strategy_.groups, group);
    group_ids_.push_back(found == strategy_.groups.end()
                             ? -1
                             : static_cast<int32_t>(found - strategy_.groups.begin()));
  }
  return findings_.empty();
}

// Every device of a group is in exactly one team, and a team lies in a group with all its members.
bool Checker::check_teams() {
  for (const auto& group : strategy_.groups) {
    std::vector<TeamId>& list = teams_.emplace_back();
    const std::set<DeviceId> all(group.begin(), group.end());
    size_t found = 0;
    for (size_t t = 0; t < graph_.teams.size(); ++t) {
      const auto& team = graph_.teams[t].devices;
      const auto inside = std::ranges::count_if(team, [&](DeviceId d) { return all.contains(d); });
      if (inside == 0) continue;
      if (static_cast<size_t>(inside) != team.size())
        complain("team {} lies partly inside of group {}", t, teams_.size() - 1);
      found += team.size();
      list.push_back(TeamId(t));
    }
    if (found != group.size())
      complain("group {} has {} devices, its teams {}", teams_.size() - 1, group.size(), found);
  }
  if (!findings_.empty()) return false;
  // What one member of a team does is what the others do, on pieces of the same size.
  for (size_t g = 0; g < kinds_.size(); ++g)
    for (TeamId team : teams_[g]) {
      std::set<int32_t> kinds;
      if (!kinds_[g].empty())
        for (int64_t m : members(team, static_cast<int32_t>(g)))
          kinds.insert(kinds_[g][static_cast<size_t>(m)]);
      if (kinds.size() > 1)
        complain("team {} has pieces of different sizes in group {}", team.value, g);
    }
  return findings_.empty();
}

void Checker::check_pieces() {
  std::vector<const Graph*> sizes = {&training_.graph};
  if (training_.unequal) sizes.push_back(&training_.unequal->smaller.graph);
  for (const Graph* graph : sizes)
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      const Op& op = graph->ops[i];
      const std::string wrong = check_tiling(
          loops_of(*graph, op), strategy_.shardings[static_cast<size_t>(strategy_.ops[i])]);
      if (!wrong.empty()) complain("\"{}\": {}", op.name, wrong);
    }
}

int64_t Checker::element_size(BufferId id) const {
  const Buffer& buffer = graph_[id];
  const auto size = [&](TensorId tensor) {
    return element_bytes(training_.graph[tensor].type.dtype);
  };
  const int32_t update = update_of_[buffer.tensor.index()];
  if (update < 0 || buffer.kind == BufferKind::Weight) return size(buffer.tensor);
  const Op& op = update_op(static_cast<size_t>(update));
  // On the host, gradients go by the name of their weight.
  if (buffer.kind == BufferKind::WeightGradient) return size(op.inputs[1]);
  if (buffer.kind != BufferKind::OptimizerState) return size(buffer.tensor);
  int64_t each = 0;
  for (size_t i = 2; i < op.inputs.size(); ++i)
    if (op.inputs[i].valid()) each += size(op.inputs[i]);
  return each;
}

int64_t Checker::part_bytes(BufferId id) {
  const int32_t layout = layout_id(graph_[id].layout);
  const int64_t elements =
      layouts_[layout].unequal()
          ? layouts_.elements(graph_[id].tensor, layout, members(holder(id), group_of(id)).front())
          : layouts_.elements(graph_[id].tensor, layout);
  return largest_part(elements, layouts_.parts(share_of(id))) * element_size(id);
}

// What lies elsewhere after a step is the same thing as before.
void Checker::check_carried() {
  for (const auto& [from, to] : graph_.carried) {
    if (from.index() >= graph_.buffers.size() || to.index() >= graph_.buffers.size()) {
      complain("what is carried over is in no buffer");
      continue;
    }
    const Buffer &a = graph_[from], &b = graph_[to];
    const bool same = a.memory == b.memory && a.kind == b.kind && a.tensor == b.tensor &&
                      a.bytes == b.bytes && a.group == b.group && a.layout == b.layout &&
                      a.share == b.share && a.at_end && !a.at_start && b.at_start && !b.at_end;
    if (!same || !carried_.insert(from).second || !carried_.insert(to).second)
      complain("{} is not what {} goes on with", name(from), name(to));
  }
}

// What a buffer is for, and what it holds at the start. False if it cannot be looked at further.
bool Checker::check_buffer(BufferId id) {
  if (are_statistics(id)) return check_statistics(id);
  const Buffer& buffer = graph_[id];
  layouts_.turn_to(buffer.micro_batch);
  const Tensor& tensor = training_.graph[buffer.tensor];
  const bool state = buffer.kind == BufferKind::OptimizerState;
  Held& held = this->held(id);
  // Memory that who runs the step keeps, without a content.
  const bool kept = training_.options.keeps_gradients && buffer.kind == BufferKind::WeightGradient;
  held.there = buffer.at_start && !kept;
  if (buffer.at_start && tensor.producer.valid() && !kept)
    complain("{} is there at the start, but \"{}\" is computed in the step", name(id), tensor.name);
  const bool goes_on = carried_.contains(id);
  if (buffer.at_end && !buffer.at_start && !goes_on)
    complain("{} outlives the step but does not begin with it", name(id));
  if (buffer.at_start && !buffer.at_end && buffer.kind == BufferKind::Weight &&
      tensor.role == TensorRole::Weight && !goes_on)
    complain("{} does not outlive the step", name(id));

  const int32_t group = group_of(id);
  held.layout = layout_id(buffer.layout);
  held.share = share_of(id);
  if (group < 0 || !layouts_.suits(buffer.tensor, held.layout, members(group)) ||
      !layouts_.alike(held.layout, held.share, members(group))) {
    complain("{} lies as {} over no group of this size, or in such shares", name(id),
             format_layout(layouts_[held.layout]));
    return false;
  }
  const TeamId team = graph_[buffer.memory].team;
  const auto& group_teams = teams_[static_cast<size_t>(group)];
  if (std::ranges::find(group_teams, holder(id)) == group_teams.end() ||
      (!team.valid() && !is_host_of(graph_[buffer.memory], buffer.team))) {
    complain("{} is of group {}, where its memory is not", name(id), group);
    return false;
  }
  if (state && update_of_[buffer.tensor.index()] < 0)
    complain("{} is the state of no weight that is updated", name(id));
  if (team.valid() && buffer.kind != BufferKind::Stash && buffer.bytes != allocated(part_bytes(id)))
    complain("{} has {} bytes, \"{}\" as {} takes {}", name(id), buffer.bytes.value, tensor.name,
             format_layout(layouts_[held.layout]), allocated(part_bytes(id)).value);
  held.content = content(buffer.tensor, state                  ? kState
                                        : fixed(buffer.tensor) ? kFixed
                                                               : buffer.micro_batch);
  return true;
}

// Whether all members of a team are on hosts that this is the memory of.
bool Checker::is_host_of(const Memory& memory, TeamId team) const {
  return std::ranges::all_of(graph_[team].devices, [&](DeviceId device) {
    return std::ranges::find(memory.hosts, machine_[device].node) != memory.hosts.end();
  });
}

const std::vector<int64_t>& Checker::members(TeamId team, int32_t group) const {
  const auto [entry, fresh] = members_.try_emplace({team, group});
  if (!fresh) return entry->second;
  const std::set<DeviceId> list(graph_[team].devices.begin(), graph_[team].devices.end());
  for (size_t m = 0; m < devices(group).size(); ++m)
    if (list.contains(devices(group)[m])) entry->second.push_back(static_cast<int64_t>(m));
  return entry->second;
}

int32_t Checker::group_of(OpId op) const {
  const Stage& stage = strategy_.stages[static_cast<size_t>(stage_of_[op.index()])];
  return same_group_[static_cast<size_t>(stage.group)];
}

std::string Checker::name(TaskId id) const {
  const Task& task = graph_[id];
  std::string text = fmt::format("task {} {}", id.value, task_kind_name(task.kind));
  if (task.op.valid()) text += fmt::format(" \"{}\"", training_.graph[task.op].name);
  if (task.tensor.valid()) text += fmt::format(" of \"{}\"", name(task.tensor));
  if (task.micro_batch >= 0) text += fmt::format(", micro-batch {}", task.micro_batch);
  return text + fmt::format(", on {}", graph_[memory_of(id)].name);
}

std::string Checker::name(BufferId id) const {
  const Buffer& buffer = graph_[id];
  std::string text = fmt::format("buffer {} ({}", id.value, buffer_kind_name(buffer.kind));
  if (!are_statistics(id)) text += fmt::format(" of \"{}\"", name(buffer.tensor));
  if (buffer.micro_batch >= 0) text += fmt::format(", micro-batch {}", buffer.micro_batch);
  return text + fmt::format(", in {})", graph_[buffer.memory].name);
}

// Every op of the forward and of the backward pass once for each micro-batch and team. Sums of
// gradients may be made in other ways: whoever reads one sees whether it is there.
void Checker::check_coverage() {
  using Key = std::tuple<TaskKind, OpId, int32_t, TeamId>;
  std::vector<Key> found, expected;
  for (size_t i = 0; i < graph_.size(); ++i) {
    const Task& task = graph_.tasks[i];
    if (!task.op.valid() || task.kind == TaskKind::Collective || task.begins) continue;
    found.emplace_back(task.kind, task.op, task.micro_batch, team_of(TaskId(i)));
    if (task.kind == TaskKind::Recompute || training_.graph[task.op].kind == OpKind::Accumulate)
      expected.push_back(found.back());
  }
  std::ranges::sort(expected);
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  for (size_t i = 0; i < first_update_; ++i) {
    const Op& op = training_.graph.ops[i];
    const bool backward = i >= training_.forward_ops;
    if (view(op) || (backward && !op.forward.valid())) continue;
    for (int32_t m = 0; m < strategy_.micro_batches; ++m)
      for (TeamId team : teams_[static_cast<size_t>(group_of(OpId(i)))])
        expected.emplace_back(backward ? TaskKind::Backward : TaskKind::Forward, OpId(i), m, team);
  }
  for (auto* list : {&found, &expected}) std::ranges::sort(*list);
  const auto report = [&](const std::vector<Key>& a, const std::vector<Key>& b, const char* what) {
    std::vector<Key> extra;
    std::ranges::set_difference(a, b, std::back_inserter(extra));
    for (const auto& [kind, op, m, team] : extra)
      complain("{} of \"{}\", micro-batch {}, on {}: {}", task_kind_name(kind),
               training_.graph[op].name, m, graph_[graph_[team].memory].name, what);
  };
  report(expected, found, "nobody does it");
  report(found, expected, "done once too often");
}

}  // namespace windlass
