#include "windlass/plan/checker.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/task/lower.h"

namespace windlass {

CheckFacts::CheckFacts(const TrainingGraph& training, const Strategy& strategy) {
  const Graph& graph = training.graph;
  const size_t tensors = graph.tensors.size();
  const size_t first_update = training.forward_ops + training.backward_ops;
  roots.resize(tensors);
  for (size_t t = 0; t < tensors; ++t) roots[t] = TensorId(t);
  stage_of.assign(graph.ops.size(), 0);
  std::vector<int32_t> uses(tensors, 0);
  for (size_t s = 0; s < strategy.stages.size(); ++s)
    for (size_t i = strategy.stages[s].first; i < strategy.stages[s].last; ++i)
      stage_of[i] = static_cast<int32_t>(s);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    for (TensorId id : op.inputs)
      if (id.valid()) ++uses[id.index()];
    if (view(op) && !op.outputs.empty() && op.outputs[0].valid())
      roots[op.outputs[0].index()] = roots[op.inputs[0].index()];
    if (i < training.forward_ops) continue;
    // A sum of gradients is made where its last term comes from: the earliest stage.
    int32_t stage = op.forward.valid() ? stage_of[op.forward.index()] : INT32_MAX;
    for (TensorId id : op.inputs) {
      if (op.forward.valid() || !id.valid() || !graph[id].producer.valid()) continue;
      if (const OpId producer = graph[id].producer; producer.index() >= training.forward_ops)
        stage = std::min(stage, stage_of[producer.index()]);
    }
    stage_of[i] = stage == INT32_MAX ? 0 : stage;
  }

  update_of.assign(tensors, -1);
  updates_of.resize(tensors);
  direct.assign(tensors, false);
  dropped.assign(graph.ops.size(), false);
  for (size_t i = first_update; i < graph.ops.size(); ++i) {
    const auto update = static_cast<int32_t>(i - first_update);
    update_of[graph.ops[i].inputs[0].index()] = update;
    std::vector<TensorId>& list = terms.emplace_back();
    std::vector<TensorId> open = {graph.ops[i].inputs[1]};
    while (!open.empty()) {
      const TensorId id = open.back();
      open.pop_back();
      const OpId producer = graph[id].producer;
      const bool own = uses[id.index()] == 1;
      updates_of[id.index()].push_back(update);
      if (producer.valid() && graph[producer].kind == OpKind::Accumulate && own) {
        dropped[producer.index()] = true;
        for (TensorId term : graph[producer].inputs) open.push_back(term);
        continue;
      }
      list.push_back(id);
      const bool made = producer.valid() && !op_info(graph[producer].kind).view;
      direct[id.index()] = own && made && graph[id].role == TensorRole::WeightGradient;
    }
  }
  readers.resize(terms.size());
  for (size_t i = 0; i < training.forward_ops; ++i)
    for (size_t k = 0; k < graph.ops[i].inputs.size(); ++k) {
      const TensorId id = graph.ops[i].inputs[k];
      if (id.valid() && update_of[id.index()] >= 0)
        readers[static_cast<size_t>(update_of[id.index()])].emplace_back(OpId(i), k);
    }
  for (const auto& group : strategy.groups) {
    const auto same = std::ranges::find(strategy.groups, group);
    same_group.push_back(static_cast<int32_t>(same - strategy.groups.begin()));
  }
}

bool CheckFacts::view(const Op& op) const { return op_info(op.kind).view; }

HappensBefore::HappensBefore(const TaskGraph& graph)
    : graph_(graph),
      lanes_(graph.lanes.size(), Clock(graph.lanes.size(), -1)),
      last_successor_(graph.size(), -1) {
  for (size_t i = 0; i < graph.size(); ++i)
    for (TaskId before : graph.predecessors_of(TaskId(i)))
      last_successor_[before.index()] = static_cast<int32_t>(i);
}

void HappensBefore::enter(TaskId task) {
  current_ = task;
  now_.assign(graph_.lanes.size(), -1);
  const auto join = [&](const Clock& clock) {
    for (size_t l = 0; l < now_.size(); ++l) now_[l] = std::max(now_[l], clock[l]);
  };
  for (LaneId lane : graph_.lanes_of(task)) join(lanes_[lane.index()]);
  for (TaskId before : graph_.predecessors_of(task)) {
    const auto found = kept_.find(before.value);
    if (found == kept_.end()) continue;
    join(found->second);
    if (last_successor_[before.index()] == task.value) kept_.erase(found);
  }
}

void HappensBefore::leave(TaskId task) {
  for (LaneId lane : graph_.lanes_of(task)) now_[lane.index()] = task.value;
  for (LaneId lane : graph_.lanes_of(task)) lanes_[lane.index()] = now_;
  if (last_successor_[task.index()] > task.value) kept_.emplace(task.value, now_);
}

bool HappensBefore::before(TaskId task) const {
  return now_[graph_.lanes_of(task)[0].index()] >= task.value;
}

Checker::Checker(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
                 const TaskGraph& graph)
    : training_(training),
      machine_(machine),
      strategy_(strategy),
      graph_(graph),
      facts_(training, strategy),
      layouts_(training, strategy) {
  const std::vector<TensorId> storage = storage_roots(training.graph);
  std::vector<int32_t> by_storage(storage.size(), -1);
  for (size_t i = 0; i < training.saved.size(); ++i)
    by_storage[training.saved[i].tensor.index()] = static_cast<int32_t>(i);
  for (TensorId root : storage) saved_index_.push_back(by_storage[root.index()]);
}

std::vector<std::string> Checker::run() {
  check_pieces();
  if (check_graph()) {
    check_teams();
    start_buffers();
    clock_.emplace(graph_);
    for (size_t i = 0; i < graph_.size(); ++i) {
      const TaskId id(i);
      clock_->enter(id);
      for (const Use& use : graph_.uses_of(id)) {
        const Users& users = users_[use.buffer.index()];
        const auto after = [&](TaskId other, const char* what) {
          if (other == id || clock_->before(other)) return;
          complain("{}: {} {} without waiting for {}", name(id), what, name(use.buffer),
                   name(other));
        };
        if (users.writer.valid()) after(users.writer, use.write ? "writes" : "reads");
        if (use.write)
          for (TaskId reader : users.readers) after(reader, "overwrites");
        if (!use.write && !held_[use.buffer.index()].there)
          complain("{}: reads {}, which nobody has written", name(id), name(use.buffer));
      }
      // Paging moves buffers about without regard to what they hold.
      if (!strategy_.virtual_memory) visit(id);
      for (const Use& use : graph_.uses_of(id)) {
        Users& users = users_[use.buffer.index()];
        if (use.write) {
          if (strategy_.virtual_memory) held_[use.buffer.index()].there = true;
          users.writer = id;
          users.readers.clear();
        } else if (users.readers.empty() || users.readers.back() != id) {
          users.readers.push_back(id);
        }
      }
      clock_->leave(id);
      if (findings_.size() >= kMost) break;
    }
    if (findings_.size() < kMost) {
      check_coverage();
      if (!strategy_.virtual_memory) check_updates();
    }
  }
  if (count_ > findings_.size()) findings_.push_back("and more");
  return std::move(findings_);
}

bool Checker::check_graph() {
  try {
    check_task_graph(graph_);
  } catch (const Error& error) {
    complain("{}", error.message());
    return false;
  }
  for (size_t i = 0; i < graph_.size(); ++i) {
    const Task& task = graph_.tasks[i];
    for (TaskId before : graph_.predecessors_of(TaskId(i)))
      if (before.index() >= i) complain("task {} waits for task {}, a later one", i, before.value);
    if (task.op.valid() && task.op.index() >= training_.graph.ops.size())
      complain("task {} carries out op {} of {}", i, task.op.value, training_.graph.ops.size());
    if (task.tensor.valid() && task.tensor.index() >= training_.graph.tensors.size())
      complain("task {} moves tensor {} of {}", i, task.tensor.value,
               training_.graph.tensors.size());
    if (task.micro_batch < -1 || task.micro_batch >= strategy_.micro_batches)
      complain("task {} is of micro-batch {} of {}", i, task.micro_batch, strategy_.micro_batches);
  }
  for (size_t b = 0; b < graph_.buffers.size(); ++b) {
    const TensorId tensor = graph_.buffers[b].tensor;
    if (!tensor.valid() || tensor.index() >= training_.graph.tensors.size())
      complain("buffer {} holds tensor {} of {}", b, tensor.value, training_.graph.tensors.size());
  }
  return findings_.empty();
}

// Every device of a group is in exactly one team, and a team lies in a group with all its members.
void Checker::check_teams() {
  for (const auto& group : strategy_.groups) {
    std::vector<TeamId>& list = teams_.emplace_back();
    const std::set<DeviceId> devices(group.begin(), group.end());
    size_t found = 0;
    for (size_t t = 0; t < graph_.teams.size(); ++t) {
      const auto& team = graph_.teams[t].devices;
      const auto inside =
          std::ranges::count_if(team, [&](DeviceId d) { return devices.contains(d); });
      if (inside == 0) continue;
      if (static_cast<size_t>(inside) != team.size())
        complain("team {} lies partly inside of group {}", t, teams_.size() - 1);
      found += team.size();
      list.push_back(TeamId(t));
    }
    if (found != group.size())
      complain("group {} has {} devices, its teams {}", teams_.size() - 1, group.size(), found);
  }
}

void Checker::check_pieces() {
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    const std::string wrong = check_tiling(
        loops_of(training_.graph, op), strategy_.shardings[static_cast<size_t>(strategy_.ops[i])]);
    if (!wrong.empty()) complain("\"{}\": {}", op.name, wrong);
  }
}

void Checker::start_buffers() {
  held_.resize(graph_.buffers.size());
  users_.resize(graph_.buffers.size());
  for (size_t b = 0; b < held_.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    held_[b].tensor = buffer.tensor;
    held_[b].there = buffer.at_start;
    const TensorRole role = training_.graph[buffer.tensor].role;
    const bool made = training_.graph[buffer.tensor].producer.valid();
    if (buffer.at_start && made)
      complain("{} is there at the start, but \"{}\" is computed in the step", name(BufferId(b)),
               name(buffer.tensor));
    if (!on_host(BufferId(b)) && buffer.bytes.value % kAllocationUnit != 0)
      complain("{} has {} bytes, no multiple of {}", name(BufferId(b)), buffer.bytes.value,
               kAllocationUnit);
    if (buffer.at_end && !buffer.at_start)
      complain("{} outlives the step but does not begin with it", name(BufferId(b)));
    const bool lasts = buffer.kind == BufferKind::OptimizerState || role != TensorRole::Weight;
    if (buffer.at_start && !lasts && !buffer.at_end && buffer.kind == BufferKind::Weight)
      complain("{} does not outlive the step", name(BufferId(b)));
  }
  updated_.resize(facts_.terms.size());
  for (size_t u = 0; u < facts_.terms.size(); ++u) {
    uint64_t all = 0;
    for (TensorId term : facts_.terms[u])
      for (int32_t m = 0; m < strategy_.micro_batches; ++m) all += term_hash(term, m);
    expected_terms_.push_back(all);
  }
}

uint64_t Checker::term_hash(TensorId term, int32_t micro_batch) const {
  return Hasher().add(term.value).add(micro_batch).result();
}

void Checker::visit(TaskId id) {
  const Task& task = graph_[id];
  const bool weight =
      task.tensor.valid() && training_.graph[task.tensor].role == TensorRole::Weight;
  switch (task.kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute: return compute(id);
    case TaskKind::Backward:
      if (!task.op.valid()) return add_term(id);
      return training_.graph[task.op].forward.valid() ? compute(id) : sum(id);
    case TaskKind::Update:
    case TaskKind::HostUpdate: return update(id);
    case TaskKind::Compress:
    case TaskKind::Decompress: return stash(id);
    case TaskKind::Collective: return task.op.valid() ? exchange(id) : redistribute(id);
    case TaskKind::Send: return weight ? send_weights(id) : redistribute(id);
    case TaskKind::Reduce: return reduce(id);
    case TaskKind::Gather: return bring_weights(id);
    case TaskKind::SwapOut:
    case TaskKind::SwapIn: {
      const auto uses = graph_.uses_of(id);
      const bool stashes = std::ranges::any_of(
          uses, [&](const Use& use) { return graph_[use.buffer].kind == BufferKind::Stash; });
      if (stashes) return stash(id);
      return task.kind == TaskKind::SwapOut ? swap_gradients(id) : bring_weights(id);
    }
  }
}

int32_t Checker::group_of(OpId op, bool backward) const {
  const Stage& stage = strategy_.stages[static_cast<size_t>(facts_.stage_of[op.index()])];
  const int32_t group = backward ? stage.backward_group : stage.group;
  return facts_.same_group[static_cast<size_t>(group)];
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
  std::string text = fmt::format("buffer {} ({} of \"{}\"", id.value, buffer_kind_name(buffer.kind),
                                 name(buffer.tensor));
  if (buffer.micro_batch >= 0) text += fmt::format(", micro-batch {}", buffer.micro_batch);
  return text + fmt::format(", in {})", graph_[buffer.memory].name);
}

const Op& Checker::update_op(int32_t update) const {
  return training_.graph
      .ops[training_.forward_ops + training_.backward_ops + static_cast<size_t>(update)];
}

const std::string& Checker::name_of_weight(int32_t update) const {
  return name(update_op(update).inputs[0]);
}

}  // namespace windlass
