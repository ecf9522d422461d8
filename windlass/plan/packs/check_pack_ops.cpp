#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/graph/network_layers.h"
#include "windlass/plan/packs/pack_op_checker.h"
#include "windlass/task/lower.h"

namespace windlass {

PackOpChecker::PackOpChecker(const TrainingGraph& training, const Machine& machine,
                             const PackStrategy& strategy, const TaskGraph& graph)
    : training_(training),
      machine_(machine),
      strategy_(strategy),
      graph_(graph),
      samples_(find_samples(training)),
      first_update_(training.forward_ops + training.backward_ops),
      roots_(storage_roots(training.graph)) {
  layer_of_ = find_layers(training.graph);
  check_packs(strategy, layer_of_.back() + 1, samples_.samples,
              static_cast<int64_t>(machine.devices.size()));
  if (samples_.samples % strategy.replicas != 0)
    fail_input("{} samples for {} pipelines, expected equal shares", samples_.samples,
               strategy.replicas);
  share_ = samples_.samples / strategy.replicas;
  for (size_t p = 0; p < strategy.backward_packs.size(); ++p)
    for (int32_t l = strategy.backward_packs[p].first; l <= strategy.backward_packs[p].last; ++l)
      pack_of_.push_back(p);
  for (size_t t = 0; t < strategy.forward_packs.size(); ++t)
    for (int32_t l = strategy.forward_packs[t].first; l <= strategy.forward_packs[t].last; ++l)
      forward_team_.push_back(static_cast<int32_t>(t % static_cast<size_t>(strategy.depth)));
  forward_team_.resize(pack_of_.size(), backward_team(strategy.backward_packs.size() - 1));
  for (int64_t s = 0; s < share_; s += strategy.forward_microbatch)
    forward_parts_.emplace(s, std::min(share_, s + strategy.forward_microbatch));
  for (int64_t s = 0; s < share_; s += strategy.backward_microbatch)
    backward_parts_.emplace(s, std::min(share_, s + strategy.backward_microbatch));
  number_tensors();
  find_layers_of_ops();
}

void PackOpChecker::number_tensors() {
  const Graph& ops = training_.graph;
  update_of_.assign(ops.tensors.size(), -1);
  gradients_.assign(ops.tensors.size(), false);
  for (size_t i = first_update_; i < ops.ops.size(); ++i) {
    update_of_[ops.ops[i].inputs[0].index()] = static_cast<int32_t>(i - first_update_);
    gradients_[ops.ops[i].inputs[1].index()] = true;
  }
  updated_.assign(ops.ops.size() - first_update_, 0);
  for (size_t t = 0; t < ops.tensors.size(); ++t) {
    const Tensor& tensor = ops.tensors[t];
    tensors_.push_back(Hasher().add(static_cast<int64_t>(t)).result() | 1);
    plain_.push_back(!tensor.producer.valid() && tensor.role != TensorRole::Weight &&
                     tensor.role != TensorRole::Buffer);
  }
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = ops.ops[i];
    const bool of_data = std::ranges::all_of(
        op.inputs, [&](TensorId id) { return !id.valid() || plain_[id.index()]; });
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId id : *list) plain_[id.index()] = of_data;
  }
  for (const Op& op : ops.ops)
    if (op.kind == OpKind::Accumulate)
      tensors_[op.outputs[0].index()] =
          tensors_[op.inputs[0].index()] + tensors_[op.inputs[1].index()];
}

// Sums of gradients are made where their last term comes from.
void PackOpChecker::find_layers_of_ops() {
  const Graph& ops = training_.graph;
  home_.assign(updated_.size(), -1);
  for (size_t i = training_.forward_ops; i-- > 0;) {
    if (op_info(ops.ops[i].kind).view) continue;
    for (TensorId id : ops.ops[i].inputs)
      if (id.valid() && update_of_[roots_[id.index()].index()] >= 0)
        home_[static_cast<size_t>(update_of_[roots_[id.index()].index()])] = layer_of_[i];
  }
  layer_of_.resize(first_update_, 0);
  for (size_t i = training_.forward_ops; i < first_update_; ++i) {
    const Op& op = ops.ops[i];
    int32_t layer = static_cast<int32_t>(pack_of_.size()) - 1;
    if (op.forward.valid() && !op_info(op.kind).view)
      layer = layer_of_[op.forward.index()];
    else
      for (TensorId id : op.inputs)
        if (id.valid() && ops[id].producer.valid())
          layer = std::min(layer, layer_of_[ops[id].producer.index()]);
    layer_of_[i] = layer;
  }
}

uint64_t PackOpChecker::number(int64_t version) const {
  return Hasher().add(int64_t{7}).add(version).result() | 1;
}

uint64_t PackOpChecker::number(const Range& samples) const {
  uint64_t total = 0;
  for (int64_t s = samples.begin; s < samples.end; ++s) total += number(s);
  return total;
}

uint64_t PackOpChecker::content(TensorId tensor, const Range& samples) const {
  return tensors_[tensor.index()] *
         (kind(tensor) == SampleKind::Fixed ? number(kFixed) : number(samples));
}

int64_t PackOpChecker::bytes(TensorId tensor, int32_t micro_batch) const {
  const Tensor& t = training_.graph[tensor];
  const int64_t of = micro_batch < 0 ? samples_.samples : range(micro_batch).size();
  return samples_.elements(training_.graph, tensor, of) * element_bytes(t.type.dtype);
}

int64_t PackOpChecker::share_bytes(TensorId tensor, int64_t element) const {
  return largest_part(element_count(training_.graph[tensor].type.shape), strategy_.replicas) *
         element;
}

int64_t PackOpChecker::state_size(size_t update) const {
  const Op& op = update_op(update);
  int64_t size = 0;
  for (size_t k = 2; k < op.inputs.size(); ++k)
    if (op.inputs[k].valid()) size += element_bytes(training_.graph[op.inputs[k]].type.dtype);
  return size;
}

std::vector<std::string> PackOpChecker::run() {
  if (check_graph() && check_teams()) {
    held_.resize(graph_.buffers.size());
    users_.resize(graph_.buffers.size());
    bool right = true;
    for (size_t b = 0; b < held_.size(); ++b) right = check_buffer(BufferId(b)) && right;
    clock_.emplace(graph_);
    for (size_t i = 0; right && i < graph_.size() && findings_.size() < kMost; ++i)
      look_at(TaskId(i));
    if (right && findings_.size() < kMost) {
      check_coverage();
      check_end();
    }
  }
  return std::move(findings_);
}

void PackOpChecker::look_at(TaskId id) {
  clock_->enter(id);
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
      held(use.buffer).from = graph_[id].kind;
    } else if (users.readers.empty() || users.readers.back() != id) {
      users.readers.push_back(id);
    }
  }
  clock_->leave(id);
}

void PackOpChecker::visit(TaskId id) {
  const Task& task = graph_[id];
  switch (task.kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute: return compute(id);
    case TaskKind::Backward:
      return task.op.valid() && training_.graph[task.op].forward.valid() ? compute(id) : sum(id);
    case TaskKind::Update:
    case TaskKind::HostUpdate: return update(id);
    case TaskKind::Send: return send(id);
    case TaskKind::Reduce:
    case TaskKind::Gather: return share(id);
    case TaskKind::Join:
    case TaskKind::SwapOut:
    case TaskKind::SwapIn: return copy(id);
    case TaskKind::Collective:
    case TaskKind::Compress:
    case TaskKind::Decompress:
    case TaskKind::Norm: return complain("{}: packs have no such task", name(id));
  }
}

// That everything that is told by a number is there.
bool PackOpChecker::check_graph() {
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
    if (task.op.valid() && task.op.index() >= first_update_)
      complain("task {} carries out op {} of {}", i, task.op.value, first_update_);
    if (task.tensor.valid() && task.tensor.index() >= ops.tensors.size())
      complain("task {} moves tensor {} of {}", i, task.tensor.value, ops.tensors.size());
    if (task.begins) complain("task {} begins an op that is not split", i);
    if (task.micro_batch != -1 && !in(task.micro_batch, graph_.micro_batches))
      complain("task {} is of micro-batch {}", i, task.micro_batch);
    if (graph_.lanes_of(TaskId(i)).size() != 1 ||
        !graph_[graph_.lanes_of(TaskId(i))[0]].team.valid())
      complain("task {} is on more than one lane, or on that of no team", i);
    for (const Use& use : graph_.uses_of(TaskId(i)))
      if (use.view != -1 && !in(use.view, graph_.views))
        complain("task {} reads view {} of {}", i, use.view, graph_.views.size());
  }
  for (size_t b = 0; b < graph_.buffers.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    if (!buffer.tensor.valid() || buffer.tensor.index() >= ops.tensors.size() ||
        !in(buffer.group, graph_.groups) || !in(buffer.layout, graph_.layouts) ||
        !in(buffer.share, graph_.digit_sets) ||
        (buffer.micro_batch != -1 && !in(buffer.micro_batch, graph_.micro_batches)))
      complain("buffer {} has no tensor, group, layout, share or micro-batch", b);
  }
  for (size_t v = 0; v < graph_.views.size(); ++v) {
    const View& seen = graph_.views[v];
    if (seen.of < -1 || seen.of >= static_cast<int32_t>(v) || !seen.tensor.valid() ||
        seen.tensor.index() >= ops.tensors.size() || !in(seen.layout, graph_.layouts))
      complain("view {} is one of nothing", v);
  }
  for (const Range& part : graph_.micro_batches)
    if (part.begin < 0 || part.end <= part.begin || part.end > share_)
      complain("a micro-batch has samples {} to {} of {}", part.begin, part.end, share_);
  return findings_.empty();
}

// Device d of replica r is device r * depth + d: team d has those of all replicas, and so has its
// group.
bool PackOpChecker::check_teams() {
  const auto depth = static_cast<size_t>(strategy_.depth);
  if (graph_.teams.size() != depth || graph_.groups.size() != depth) {
    complain("{} teams in {} groups for {} places of a pipeline", graph_.teams.size(),
             graph_.groups.size(), depth);
    return false;
  }
  for (size_t t = 0; t < depth; ++t) {
    const Team& team = graph_.teams[t];
    std::vector<DeviceId> devices;
    for (int32_t r = 0; r < strategy_.replicas; ++r)
      devices.emplace_back(static_cast<size_t>(r) * depth + t);
    if (team.devices != devices || graph_.groups[t] != devices || !team.memory.valid() ||
        team.memory.index() >= graph_.memories.size() || graph_[team.memory].team != TeamId(t))
      complain("team {} is not of the devices of its place", t);
  }
  return findings_.empty();
}

Layout PackOpChecker::expected_layout(const Buffer& buffer) const {
  Digit digit = {.parts = strategy_.replicas};
  const bool host = !graph_[buffer.memory].team.valid();
  const SampleKind of = kind(buffer.tensor);
  if (of == SampleKind::Summed && !host) digit.kind = Digit::Kind::Partial;
  if (of == SampleKind::Apart && buffer.micro_batch >= 0) {
    digit.kind = Digit::Kind::Axis;
    digit.axis = samples_.axis[buffer.tensor.index()];
    digit.loop_size = training_.graph[buffer.tensor].type.shape[static_cast<size_t>(digit.axis)];
    digit.map = {.loop = 0};
  }
  return layout_from({digit});
}

// What a buffer is for, and what it holds at the start. False if it cannot be looked at further.
bool PackOpChecker::check_buffer(BufferId id) {
  const Buffer& buffer = graph_[id];
  const Tensor& tensor = training_.graph[buffer.tensor];
  const bool state = buffer.kind == BufferKind::OptimizerState;
  const bool weight = tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer;
  const TeamId team = graph_[buffer.memory].team;
  Held& held = this->held(id);
  held.there = buffer.at_start;
  if (buffer.at_start && tensor.producer.valid())
    complain("{} is there at the start, but \"{}\" is computed in the step", name(id), tensor.name);
  if (buffer.at_start && team.valid() && (weight || kind(buffer.tensor) == SampleKind::Apart))
    complain("{} is on a device before the step", name(id));
  if (buffer.at_end && !buffer.at_start)
    complain("{} outlives the step but does not begin with it", name(id));
  if (buffer.at_start && !buffer.at_end && weight)
    complain("{} does not outlive the step", name(id));
  if (state && update_of_[buffer.tensor.index()] < 0) {
    complain("{} is the state of no weight that is updated", name(id));
    return false;
  }
  const Layout& layout = graph_.layouts[static_cast<size_t>(buffer.layout)];
  const bool settled = buffer.kind == BufferKind::WeightGradient &&
                       layout == layout_from({Digit{.parts = strategy_.replicas}});
  if (layout != expected_layout(buffer) && !settled)
    complain("{} lies as {}, expected {}", name(id), format_layout(layout),
             format_layout(expected_layout(buffer)));
  // What the host holds for all goes by the first of them.
  const TeamId whose = team.valid() ? team : TeamId(size_t{0});
  if (buffer.group != whose.value || buffer.team != (team.valid() ? TeamId() : whose))
    complain("{} is of group {}, where its memory is not", name(id), buffer.group);
  held.share = buffer.share != 0;
  if (held.share && (graph_.digit_sets[static_cast<size_t>(buffer.share)] !=
                         std::vector<MemberDigit>{{1, strategy_.replicas}} ||
                     !replicated() || !team.valid() || buffer.at_start ||
                     (buffer.kind != BufferKind::Weight && !state)))
    complain("{} is in other shares than those of the replicas", name(id));
  const int64_t element = state ? state_size(static_cast<size_t>(update_of_[buffer.tensor.index()]))
                                : element_bytes(tensor.type.dtype);
  int64_t expected = bytes(buffer.tensor, buffer.micro_batch);
  if (state) expected = element_count(tensor.type.shape) * element;
  if (held.share) expected = share_bytes(buffer.tensor, element);
  if (team.valid() || buffer.kind == BufferKind::Stash) expected = allocated(expected).value;
  if (buffer.kind == BufferKind::Stash) expected *= strategy_.replicas;
  if (buffer.bytes.value != expected)
    complain("{} has {} bytes, expected {}", name(id), buffer.bytes.value, expected);
  if (kind(buffer.tensor) == SampleKind::Apart) held.samples = range(buffer.micro_batch);
  if (buffer.micro_batch < 0 && kind(buffer.tensor) == SampleKind::Apart)
    held.samples = {0, samples_.samples};
  held.content = state ? tensors_[buffer.tensor.index()] * number(kState)
                       : content(buffer.tensor, held.samples);
  return true;
}

std::string PackOpChecker::name(TaskId id) const {
  const Task& task = graph_[id];
  std::string text = fmt::format("task {} {}", id.value, task_kind_name(task.kind));
  if (task.op.valid()) text += fmt::format(" \"{}\"", training_.graph[task.op].name);
  if (task.tensor.valid()) text += fmt::format(" of \"{}\"", name(task.tensor));
  if (task.micro_batch >= 0) text += fmt::format(", micro-batch {}", task.micro_batch);
  return text +
         fmt::format(", on {}", graph_[graph_.teams[static_cast<size_t>(team(id))].memory].name);
}

std::string PackOpChecker::name(BufferId id) const {
  const Buffer& buffer = graph_[id];
  std::string text = fmt::format("buffer {} ({} of \"{}\"", id.value, buffer_kind_name(buffer.kind),
                                 name(buffer.tensor));
  if (buffer.micro_batch >= 0) text += fmt::format(", micro-batch {}", buffer.micro_batch);
  return text + fmt::format(", in {})", graph_[buffer.memory].name);
}

// Every op of the forward pass on every sample once, those of the loss pack in the micro-batches of
// the backward pass; every op of the backward pass once. Recomputing at most once. What is made of
// data alone is made wherever it is read.
void PackOpChecker::check_coverage() {
  using Key = std::tuple<TaskKind, OpId, int64_t, int64_t>;
  std::vector<Key> found, expected;
  for (const Task& task : graph_.tasks) {
    if (!task.op.valid()) continue;
    const Op& op = training_.graph[task.op];
    if (op.kind == OpKind::Accumulate) continue;
    if (!op.forward.valid() && plain(op.outputs[0])) continue;
    const Range part = range(task.micro_batch);
    found.emplace_back(task.kind, task.op, part.begin, part.end);
    if (task.kind == TaskKind::Recompute) expected.push_back(found.back());
  }
  std::ranges::sort(expected);
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  for (size_t i = 0; i < first_update_; ++i) {
    const Op& op = training_.graph.ops[i];
    const bool backward = i >= training_.forward_ops;
    if (op_info(op.kind).view || (backward && !op.forward.valid())) continue;
    if (!backward && plain(op.outputs[0])) continue;
    const bool late = backward || loss_pack(pack_of(layer_of_[i]));
    for (const auto& [begin, end] : late ? backward_parts_ : forward_parts_)
      expected.emplace_back(backward ? TaskKind::Backward : TaskKind::Forward, OpId(i), begin, end);
  }
  for (auto* list : {&found, &expected}) std::ranges::sort(*list);
  const auto report = [&](const std::vector<Key>& a, const std::vector<Key>& b, const char* what) {
    std::vector<Key> extra;
    std::ranges::set_difference(a, b, std::back_inserter(extra));
    for (const auto& [kind, op, begin, end] : extra)
      complain("{} of \"{}\", samples {} to {}: {}", task_kind_name(kind), training_.graph[op].name,
               begin, end, what);
  };
  report(expected, found, "nobody does it");
  report(found, expected, "done once too often");
}

void PackOpChecker::check_end() {
  for (size_t u = 0; u < updated_.size(); ++u)
    if (updated_[u] != 1)
      complain("\"{}\" is updated {} times, expected once", name(update_op(u).inputs[0]),
               updated_[u]);
  for (size_t b = 0; b < held_.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    if (!buffer.at_end || update_of_[buffer.tensor.index()] < 0) continue;
    const bool state = buffer.kind == BufferKind::OptimizerState;
    if (held_[b].content != tensors_[buffer.tensor.index()] * number(state ? kNewState : kNew) ||
        held_[b].share)
      complain("{} is not new at the end of the step", name(BufferId(b)));
  }
}

}  // namespace windlass
