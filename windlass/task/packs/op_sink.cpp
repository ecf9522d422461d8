// What the walk says, and what moves between layers.
#include "windlass/task/packs/op_sink.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

bool is_flow(PackData what) {
  return what == PackData::Input || what == PackData::Backward || what == PackData::Saved;
}

}  // namespace

OpSink::OpSink(const OpChain& chain, PackTeams& teams, const PackStrategy& strategy)
    : chain_(chain),
      training_(chain.training),
      teams_(teams),
      strategy_(strategy),
      graph_(teams.graph()),
      shared_(strategy.streams && strategy.replicas > 1) {
  for (size_t p = 0; p < strategy.backward_packs.size(); ++p)
    for (int32_t l = strategy.backward_packs[p].first; l <= strategy.backward_packs[p].last; ++l)
      pack_of_.push_back(p);
  for (const Team& team : graph_.teams) graph_.groups.push_back(team.devices);
  graph_.digit_sets = {{}};
  if (strategy.replicas > 1) graph_.digit_sets.push_back({{1, strategy.replicas}});
  last_compute_.resize(graph_.teams.size());
  before_data_.resize(graph_.teams.size());
}

// The lists that the walk has appended to, off the ends of the graph's.
OpSink::Words OpSink::take() {
  Words words;
  const auto begin = static_cast<std::ptrdiff_t>(graph_.predecessor_begin.back());
  words.after.assign(graph_.predecessors.begin() + begin, graph_.predecessors.end());
  graph_.predecessors.resize(graph_.predecessor_begin.back());
  for (size_t i = graph_.use_begin.back(); i < graph_.uses.size(); ++i)
    (graph_.uses[i].write ? words.writes : words.reads).push_back(graph_.uses[i].buffer.index());
  graph_.uses.resize(graph_.use_begin.back());
  return words;
}

TaskId OpSink::add(const Task& model, LaneId lane, int32_t team) {
  std::ranges::sort(after_);
  after_.erase(std::unique(after_.begin(), after_.end()), after_.end());
  std::erase_if(after_, [&](TaskId task) { return graph_.lanes_of(task)[0] == lane; });
  Task task = model;
  task.group = team;
  const TaskId id = graph_.add(task, std::span(&lane, 1), after_, uses_);
  after_.clear();
  uses_.clear();
  return id;
}

// What comes after a task that has nothing to do waits for what that would have waited for.
TaskId OpSink::nothing(const Words& words) {
  after_.clear();
  if (!words.after.empty()) return std::ranges::max(words.after);
  return graph_.size() > 0 ? TaskId(graph_.size() - 1) : TaskId();
}

// What is read in the forward pass is all that its layers have; the backward pass leaves biases and
// the like alone.
void OpSink::begin_pack(Pack pack, bool backward) {
  brought_.clear();
  if (backward) {
    made_backward_.clear();
    wanted_ = state_read(pack_of_[static_cast<size_t>(pack.first)]);
    return;
  }
  wanted_.clear();
  for (int32_t l = pack.first; l <= pack.last; ++l) {
    const auto& state = chain_.layers[static_cast<size_t>(l)].state;
    wanted_.insert(state.begin(), state.end());
  }
}

BufferId OpSink::buffer(MemoryId memory, BufferKind, const PackLabel& what) {
  handles_.push_back({memory, what, {}});
  return BufferId(handles_.size() - 1);
}

int32_t OpSink::micro_batch(const PackLabel& what) {
  const Range range = {what.begin, what.end};
  const auto found = std::ranges::find(graph_.micro_batches, range);
  const auto id = static_cast<int32_t>(found - graph_.micro_batches.begin());
  if (found == graph_.micro_batches.end()) graph_.micro_batches.push_back(range);
  return id;
}

TaskId OpSink::compute(TaskKind kind, LaneId lane, const PackLabel& what) {
  const Words words = take();
  const int32_t team = graph_[lane].team.value;
  if (kind == TaskKind::HostUpdate) return update_on_host(lane, team, what, words);
  if (kind == TaskKind::Update) return update_on_device(lane, team, what, words);
  const bool backward = what.what != PackData::Input;
  const int32_t part = micro_batch(what);
  if (part != here_.micro_batch || team != here_.team) {
    brought_.clear();
    auto& before = before_data_[static_cast<size_t>(team)];
    before = {before.second, last_compute_[static_cast<size_t>(team)]};
  }
  here_ = {.kind = kind, .team = team, .lane = lane, .micro_batch = part};
  here_.pack = pack_of_[static_cast<size_t>(what.layers.first)];
  here_.now = backward ? &made_backward_[part] : &made_forward_[{team, part}];
  if (backward && strategy_.actions[here_.pack] == PackAction::Keep)
    here_.kept = &made_forward_[{team, part}];
  first_after_ = words.after;
  bind(words, !backward);
  if (what.what == PackData::Backward) {
    for (int32_t l = what.layers.last; l >= what.layers.first; --l) {
      const ChainLayer& layer = chain_.layers[static_cast<size_t>(l)];
      for (OpId op : layer.backward) this->backward(op, l);
      for (const auto& [update, term] : layer.shared_terms) add_term(update, term, l);
    }
  } else {
    for (int32_t l = what.layers.first; l <= what.layers.last; ++l)
      for (OpId op : chain_.layers[static_cast<size_t>(l)].forward)
        if (kind != TaskKind::Recompute || needed(here_.pack)[op.index()]) forward(op);
  }
  for (size_t h : words.writes) {
    Handle& handle = handles_[h];
    const ChainLayer* layer = nullptr;
    if (handle.what.what == PackData::Input || handle.what.what == PackData::Backward)
      layer = &chain_.layers[static_cast<size_t>(handle.what.layers.first)];
    if (layer == nullptr) continue;
    const TensorId tensor = handle.what.what == PackData::Input ? layer->input : layer->gradient;
    if (tensor.valid()) handle.values[tensor] = look(tensor, what.layers.first);
  }
  first_after_.clear();
  const TaskId last = last_compute_[static_cast<size_t>(team)];
  return last.valid() ? last : nothing(words);
}

// What is passed on and passed back comes to the ops at hand.
void OpSink::bind(const Words& words, bool forward) {
  for (size_t h : words.reads) {
    const Handle& handle = handles_[h];
    if (handle.what.what == PackData::Backward || (forward && handle.what.what == PackData::Input))
      for (const auto& [tensor, value] : handle.values)
        (chain_.is_data(tensor) ? brought_ : *here_.now)[tensor] = value;
  }
  if (!forward) bind_inputs(words);
}

// Inputs of a backward pack may be of other micro-batches. Data comes from the host again then.
void OpSink::bind_inputs(const Words& words) {
  std::map<TensorId, std::vector<Value>> parts;
  bool same = true;
  for (size_t h : words.reads) {
    const Handle& handle = handles_[h];
    if (handle.what.what != PackData::Input) continue;
    same = micro_batch(handle.what) == here_.micro_batch;
    for (const auto& [tensor, value] : handle.values) {
      if (!chain_.is_data(tensor))
        parts[tensor].push_back(value);
      else if (same)
        brought_.try_emplace(tensor, value);
    }
  }
  for (const auto& [tensor, list] : parts)
    if (!here_.now->contains(tensor))
      (*here_.now)[tensor] = list.size() == 1 && same ? list[0] : join(tensor, list);
}

TaskId OpSink::move(TaskKind kind, LaneId lane, PackMove how, const PackLabel& what) {
  const Words words = take();
  const int32_t team = graph_[lane].team.value;
  after_ = words.after;
  return is_flow(what.what) ? move_flow(kind, lane, how, team, what, words)
                            : move_state(kind, lane, how, team, what, words);
}

// Tensors of a micro-batch to the host, from there, or to the next team.
TaskId OpSink::move_flow(TaskKind kind, LaneId lane, PackMove how, int32_t team,
                         const PackLabel& what, const Words& words) {
  const int32_t part = micro_batch(what);
  const size_t pack = pack_of_[static_cast<size_t>(what.layers.first)];
  Handle& target = handles_[words.writes.front()];
  std::map<TensorId, std::vector<Value>> sources;
  if (what.what == PackData::Saved && kind == TaskKind::SwapOut) {
    const Values& made = made_forward_[{team, part}];
    for (TensorId tensor : saved_of(pack)) sources[tensor] = {made.at(tensor)};
  } else if (words.reads.empty()) {
    for (TensorId tensor : chain_.layers.front().data) sources[tensor] = {Value()};
  }
  for (size_t h : words.reads)
    for (const auto& [tensor, value] : handles_[h].values) sources[tensor].push_back(value);
  const bool out = kind == TaskKind::SwapOut;
  const int32_t to = kind == TaskKind::Send ? (team + 1) % teams_.depth() : team;
  size_t index = 0;
  int64_t moved = 0;
  std::vector<Value*> arrived;
  TensorId named;
  for (auto& [tensor, list] : sources) {
    Value& value = target.values[tensor];
    if (out && chain_.is_data(tensor)) continue;
    if (chain_.is_data(tensor)) {
      const auto [entry, fresh] = host_data_.try_emplace(tensor);
      if (fresh) entry->second.buffer = make_on_host(BufferKind::Input, tensor, -1, 0, true, false);
      list = {entry->second};
    }
    for (const Value& from : list) read(from, UseKind::From, index);
    const int64_t size = bytes(tensor, part);
    value = {};
    if (out)
      value.buffer = make_on_host(BufferKind::Stash, tensor, part,
                                  allocated(size).value * strategy_.replicas, false, false);
    else
      value.buffer = make(to,
                          what.what == PackData::Saved ? BufferKind::Activation
                          : chain_.is_data(tensor)     ? BufferKind::Input
                                                       : BufferKind::Communication,
                          tensor, part);
    write(value, UseKind::To, index++);
    arrived.push_back(&value);
    moved += size;
    named = tensor;
  }
  if (index == 0) return nothing(words);
  Task task = {.kind = kind, .price = teams_.traffic(how, team, moved), .micro_batch = part};
  if (index == 1) task.tensor = named;
  if (kind == TaskKind::Send) {
    const int32_t lies = layout(named);
    task.how = movement({.pairwise = true,
                         .from_group = team,
                         .to_group = to,
                         .from_layout = lies,
                         .to_layout = lies});
  }
  const TaskId id = add(task, lane, team);
  for (Value* value : arrived) value->ready = id;
  if (what.what == PackData::Saved && !out)
    for (const auto& [tensor, value] : target.values) made_backward_[part][tensor] = value;
  return id;
}

BufferId OpSink::make(int32_t team, BufferKind kind, TensorId tensor, int32_t part) {
  return graph_.add(Buffer{.memory = teams_.memory(team),
                           .kind = kind,
                           .micro_batch = part,
                           .tensor = tensor,
                           .group = team,
                           .layout = layout(tensor),
                           .bytes = allocated(bytes(tensor, part))});
}

// Bytes 0: all of the tensor, once.
BufferId OpSink::make_on_host(BufferKind kind, TensorId tensor, int32_t part, int64_t size,
                              bool at_start, bool at_end) {
  return graph_.add(
      Buffer{.memory = teams_.host_memory(),
             .team = TeamId(size_t{0}),
             .kind = kind,
             .at_start = at_start,
             .at_end = at_end,
             .micro_batch = part,
             .tensor = tensor,
             .group = 0,
             .layout = part < 0 ? copies() : layout(tensor),
             .bytes = size > 0 ? Bytes(size) : byte_size(training_.graph[tensor].type)});
}

// Of one member; what is not of a micro-batch is whole.
int64_t OpSink::elements(TensorId tensor, int32_t part) const {
  const int64_t all = element_count(training_.graph[tensor].type.shape);
  if (part < 0 || !apart(tensor)) return all;
  const int64_t size = graph_.micro_batches[static_cast<size_t>(part)].size();
  return chain_.samples.elements(training_.graph, tensor, size);
}

int32_t OpSink::layout(TensorId tensor) {
  const SampleKind kind = chain_.samples.kind[tensor.index()];
  if (strategy_.replicas == 1 || kind == SampleKind::Fixed) return copies();
  if (kind == SampleKind::Summed)
    return layout(-2, 0, {.kind = Digit::Kind::Partial, .parts = strategy_.replicas});
  const int32_t axis = chain_.samples.axis[tensor.index()];
  const int64_t size = training_.graph[tensor].type.shape[static_cast<size_t>(axis)];
  return layout(axis, size,
                {.kind = Digit::Kind::Axis,
                 .parts = strategy_.replicas,
                 .axis = axis,
                 .loop_size = size,
                 .map = {.loop = 0}});
}

int32_t OpSink::layout(int32_t axis, int64_t size, const Digit& digit) {
  const auto [entry, fresh] =
      layouts_.try_emplace({axis, size}, static_cast<int32_t>(graph_.layouts.size()));
  if (fresh) graph_.layouts.push_back(layout_from({digit}));
  return entry->second;
}

int32_t OpSink::movement(const Movement& wanted) {
  const auto same = [&](const Movement& known) {
    return known.pairwise == wanted.pairwise && known.collective == wanted.collective &&
           known.digits == wanted.digits && known.from_group == wanted.from_group &&
           known.to_group == wanted.to_group && known.from_layout == wanted.from_layout &&
           known.to_layout == wanted.to_layout;
  };
  const auto found = std::ranges::find_if(graph_.movements, same);
  const auto id = static_cast<int32_t>(found - graph_.movements.begin());
  if (found == graph_.movements.end()) graph_.movements.push_back(wanted);
  return id;
}

}  // namespace windlass
