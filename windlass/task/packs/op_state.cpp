// Weights, gradients and optimizer state: where they are, how they move, who updates them.
#include <algorithm>

#include "windlass/task/lower.h"
#include "windlass/task/packs/op_sink.h"

namespace windlass {

// Whole tensors, as evenly as they can be shared out in order.
std::vector<PackSink::Part> OpSink::cut(int32_t layer, int64_t parts) {
  const std::vector<TensorId>& tensors = chain_.layers[static_cast<size_t>(layer)].state;
  int64_t total = 0;
  for (TensorId tensor : tensors) total += bytes(tensor, -1);
  std::vector<Part> result;
  std::vector<TensorId> list;
  int64_t done = 0;
  const auto close = [&] {
    const auto part = static_cast<int32_t>(result.size());
    Part& made = result.emplace_back();
    for (TensorId tensor : list) {
      made.state += bytes(tensor, -1);
      if (training_.graph[tensor].role == TensorRole::Weight) made.weights += bytes(tensor, -1);
    }
    pieces_[{layer, part}] = make_places(list, {layer, layer});
    for (size_t p : pieces_[{layer, part}])
      if (places_[p].home)
        made.optimizer += elements(places_[p].tensor, -1) *
                          chain_.facts.updates[static_cast<size_t>(places_[p].update)].state_size;
    list.clear();
  };
  for (TensorId tensor : tensors) {
    list.push_back(tensor);
    done += bytes(tensor, -1);
    if (done * parts >= total * static_cast<int64_t>(result.size() + 1)) close();
  }
  if (!list.empty()) close();
  return result;
}

std::vector<size_t> OpSink::make_places(const std::vector<TensorId>& tensors, Pack layers) {
  std::vector<size_t> result;
  for (TensorId tensor : tensors) {
    Place place = {.tensor = tensor, .update = chain_.facts.update_index[tensor.index()]};
    if (place.update >= 0) {
      const int32_t home = chain_.home[static_cast<size_t>(place.update)];
      place.home = home >= layers.first && home <= layers.last;
    }
    for (int32_t l = layers.first; l <= layers.last; ++l) place_of_[{l, tensor}] = places_.size();
    result.push_back(places_.size());
    places_.push_back(place);
  }
  return result;
}

std::vector<size_t>& OpSink::piece(const PackLabel& what) {
  const auto [entry, fresh] = pieces_.try_emplace({what.layers.first, what.part});
  if (!fresh) return entry->second;
  std::vector<TensorId> tensors;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l)
    for (TensorId tensor : chain_.layers[static_cast<size_t>(l)].state)
      if (std::ranges::find(tensors, tensor) == tensors.end()) tensors.push_back(tensor);
  return entry->second = make_places(tensors, what.layers);
}

OpSink::Value OpSink::host_weight(TensorId tensor) {
  const auto [entry, fresh] = host_weights_.try_emplace(tensor);
  if (fresh) entry->second.buffer = make_on_host(BufferKind::Weight, tensor, -1, 0, true, true);
  return entry->second;
}

OpSink::Value OpSink::host_state(int32_t update) {
  const auto [entry, fresh] = host_states_.try_emplace(update);
  const TrainingFacts::Update& facts = chain_.facts.updates[static_cast<size_t>(update)];
  if (fresh)
    entry->second.buffer = make_on_host(BufferKind::OptimizerState, facts.weight, -1,
                                        elements(facts.weight, -1) * facts.state_size, true, true);
  return entry->second;
}

// Whoever has read it comes first.
void OpSink::write_host_weight(TensorId tensor, UseKind kind, size_t index) {
  for (auto entry = fetched_.lower_bound({tensor, LaneId()});
       entry != fetched_.end() && entry->first.first == tensor; ++entry)
    after(entry->second);
  write(host_weight(tensor), kind, index);
}

// A copy of state between a team and the host. `whole`: of shares in buffers for all of it.
TaskId OpSink::swap(TaskKind kind, LaneId lane, PackMove how, int32_t team, int64_t bytes,
                    bool whole) {
  Task task = {.kind = kind, .price = teams_.traffic(how, team, bytes)};
  if (whole && shared_) task.how = 1;
  if (how == PackMove::FirstOut && strategy_.replicas > 1) task.how = kFirstMember;
  return add(task, lane, team);
}

// The gradient of a place leaves its team. Bytes that each member sends.
int64_t OpSink::gradient_to_host(Place& place, size_t index) {
  const TrainingFacts::Update& facts = chain_.facts.updates[static_cast<size_t>(place.update)];
  Value host = {
      make_on_host(BufferKind::WeightGradient, facts.gradient, -1, 0, false, false), -1, {}};
  read(place.gradient, UseKind::From, index);
  write(host, UseKind::To, index);
  host_gradients_[place.update].push_back(host);
  const int64_t all = elements(facts.gradient, -1);
  return (shared_ ? share(all) : all) * facts.gradient_size;
}

TaskId OpSink::move_state(TaskKind kind, LaneId lane, PackMove how, int32_t team,
                          const PackLabel& what, const Words& words) {
  const std::vector<size_t>& list = piece(what);
  const bool in = kind == TaskKind::SwapIn;
  size_t index = 0;
  int64_t moved = 0;
  bool whole = true;
  std::vector<Value*> changed;
  for (size_t p : list) {
    Place& place = places_[p];
    const int64_t all = elements(place.tensor, -1);
    const int64_t size = chain_.facts.element_size[place.tensor.index()];
    if (kind == TaskKind::Reduce) {
      if (!place.begun) continue;
      write(place.gradient, UseKind::From, index++);
      changed.push_back(&place.gradient);
      moved += all * chain_.facts.updates[static_cast<size_t>(place.update)].gradient_size;
    } else if (kind == TaskKind::Gather) {
      if (!wanted_.contains(place.tensor)) continue;
      const bool from_share = place.share.buffer.valid() && !words.reads.empty();
      if (from_share) {
        place.weight = {make(team, BufferKind::Weight, place.tensor, -1), -1, {}};
        read(place.share, UseKind::From, index);
        write(place.weight, UseKind::To, index++);
      } else {
        write(place.weight, UseKind::From, index++);
      }
      changed.push_back(&place.weight);
      moved += all * size;
    } else if (what.what == PackData::Gradients) {
      if (!place.begun) continue;
      moved += gradient_to_host(place, index++);
      changed.push_back(&host_gradients_[place.update].back());
    } else if (what.what == PackData::Optimizer) {
      const TrainingFacts::Update* facts =
          place.home ? &chain_.facts.updates[static_cast<size_t>(place.update)] : nullptr;
      if (facts == nullptr || facts->state_size == 0) continue;
      const int64_t part = share(all) * facts->state_size;
      if (in) {
        place.state = {make(team, BufferKind::OptimizerState, place.tensor, -1), -1, {}};
        Buffer& buffer = graph_.buffers[place.state.buffer.index()];
        buffer.bytes = allocated(part);
        buffer.share = strategy_.replicas > 1 ? 1 : 0;
      }
      whole = false;
      const Value host = host_state(place.update);
      in ? read(host, UseKind::From, index) : read(place.state, UseKind::From, index);
      in ? write(place.state, UseKind::To, index) : write(host, UseKind::To, index);
      ++index;
      changed.push_back(in ? &place.state : &host_states_[place.update]);
      moved += part;
    } else if (in) {
      if (!wanted_.contains(place.tensor)) {
        place.weight = {};
        continue;
      }
      const bool share_alone = what.what == PackData::Shares;
      Value& target = share_alone ? place.share : place.weight;
      target = {make(team, BufferKind::Weight, place.tensor, -1), -1, {}};
      if (share_alone) {
        Buffer& buffer = graph_.buffers[target.buffer.index()];
        buffer.bytes = allocated(share(all) * size);
        buffer.share = 1;
        whole = false;
      }
      read(host_weight(place.tensor), UseKind::From, index);
      write(target, UseKind::To, index++);
      changed.push_back(&target);
      moved += (shared_ ? share(all) : all) * size;
    } else {
      if (!place.home) continue;
      read(place.weight, UseKind::From, index);
      write_host_weight(place.tensor, UseKind::To, index++);
      changed.push_back(&host_weights_[place.tensor]);
      moved += share(all) * size;
    }
  }
  if (index == 0) return nothing(words);
  TaskId id;
  if (kind == TaskKind::Reduce || kind == TaskKind::Gather) {
    const Collective collective = kind == TaskKind::Gather   ? Collective::AllGather
                                  : how == PackMove::Scatter ? Collective::ReduceScatter
                                                             : Collective::AllReduce;
    id = add({.kind = kind,
              .price = teams_.traffic(how, team, moved),
              .how = movement(
                  {.collective = collective, .digits = 1, .from_group = team, .to_group = team})},
             lane, team);
  } else {
    id = swap(kind, lane, how, team, moved, whole);
  }
  for (Value* value : changed) value->ready = id;
  if (in && what.what != PackData::Optimizer)
    for (size_t p : list)
      if (wanted_.contains(places_[p].tensor)) fetched_[{places_[p].tensor, lane}] = id;
  return id;
}

Work OpSink::update_work_of(std::span<const int32_t> updates) const {
  // One launch for all weights of a type.
  std::map<std::pair<DType, DType>, double> types;
  for (int32_t u : updates) {
    const TrainingFacts::Update& facts = chain_.facts.updates[static_cast<size_t>(u)];
    types[{training_.graph[facts.weight].type.dtype, training_.graph[facts.gradient].type.dtype}] +=
        static_cast<double>(share(elements(facts.weight, -1)));
  }
  Work work;
  for (const auto& [type, count] : types) {
    const bool master = training_.options.master_weights && element_bytes(type.first) < 4;
    const Work more =
        update_work(training_.options.optimizer, count, type.first, type.second, master);
    work.kernels.insert(work.kernels.end(), more.kernels.begin(), more.kernels.end());
  }
  return work;
}

TaskId OpSink::update_on_host(LaneId lane, int32_t team, const PackLabel& what,
                              const Words& words) {
  std::vector<int32_t> updates;
  after_ = words.after;
  for (size_t p : piece(what)) {
    const Place& place = places_[p];
    if (!place.home) continue;
    const auto u = static_cast<size_t>(place.update);
    updates.push_back(place.update);
    for (const Value& term : host_gradients_[place.update]) read(term, UseKind::Gradient, u);
    write_host_weight(place.tensor, UseKind::Weight, u);
    if (chain_.facts.updates[u].state_size > 0) write(host_state(place.update), UseKind::State, u);
  }
  if (updates.empty()) return nothing(words);
  return add({.kind = TaskKind::HostUpdate, .price = work(update_work_of(updates)), .how = 0}, lane,
             team);
}

// Each member updates its share. Terms of a gradient from other teams come from the host, and those
// of weights that are updated elsewhere go there.
TaskId OpSink::update_on_device(LaneId lane, int32_t team, const PackLabel& what,
                                const Words& words) {
  const std::vector<size_t>& list = piece(what);
  size_t index = 0;
  int64_t moved = 0;
  std::vector<Value*> changed;
  std::vector<int32_t> updates;
  for (size_t p : list)
    if (places_[p].begun && !places_[p].home) {
      moved += gradient_to_host(places_[p], index++);
      changed.push_back(&host_gradients_[places_[p].update].back());
    }
  if (index > 0) {
    const TaskId left =
        swap(TaskKind::SwapOut, teams_.gradients_out(team), PackMove::Out, team, moved, true);
    for (Value* value : changed) value->ready = left;
  }
  std::map<size_t, std::vector<Value>> terms;  // by place
  index = 0;
  moved = 0;
  for (size_t p : list) {
    Place& place = places_[p];
    if (!place.home) continue;
    updates.push_back(place.update);
    for (const Value& host : host_gradients_[place.update]) {
      const TensorId tensor = chain_.facts.updates[static_cast<size_t>(place.update)].gradient;
      Value& value =
          terms[p].emplace_back(Value{make(team, BufferKind::WeightGradient, tensor, -1), -1, {}});
      graph_.buffers[value.buffer.index()].layout = copies();
      read(host, UseKind::From, index);
      write(value, UseKind::To, index++);
      moved += share(elements(tensor, -1)) * chain_.facts.element_size[tensor.index()];
    }
  }
  if (index > 0) {
    const TaskId there =
        swap(TaskKind::SwapIn, teams_.weights_in(team), PackMove::In, team, moved, true);
    for (auto& [p, values] : terms)
      for (Value& value : values) value.ready = there;
  }
  if (updates.empty()) return nothing(words);
  after_ = words.after;
  for (size_t p : list) {
    Place& place = places_[p];
    if (!place.home) continue;
    const auto u = static_cast<size_t>(place.update);
    if (place.begun) read(place.gradient, UseKind::Gradient, u);
    for (const Value& term : terms[p]) read(term, UseKind::Gradient, u);
    write(place.weight, UseKind::Weight, u);
    if (place.state.buffer.valid()) write(place.state, UseKind::State, u);
  }
  const TaskId id = add({.kind = TaskKind::Update,
                         .price = work(update_work_of(updates)),
                         .how = strategy_.replicas > 1 ? 1 : 0},
                        lane, team);
  for (size_t p : list) {
    if (!places_[p].home) continue;
    places_[p].weight.ready = id;
    if (places_[p].state.buffer.valid()) places_[p].state.ready = id;
  }
  last_compute_[static_cast<size_t>(team)] = id;
  return id;
}

}  // namespace windlass
