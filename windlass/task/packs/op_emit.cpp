// Ops of a micro-batch, and the values they read.
#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/task/lower.h"
#include "windlass/task/packs/op_sink.h"

namespace windlass {

TaskId OpSink::emit(Task task) {
  for (TaskId before : first_after_) after(before);
  first_after_.clear();
  task.micro_batch = here_.micro_batch;
  const TaskId id = add(task, here_.lane, here_.team);
  last_compute_[static_cast<size_t>(here_.team)] = id;
  return id;
}

void OpSink::forward(OpId id) {
  const Op& op = training_.graph[id];
  const bool plain = chain_.is_plain(op.outputs[0]);
  const int32_t layer = chain_.layer_of[id.index()];
  std::vector<Value> operands(op.inputs.size());
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (op.inputs[k].valid()) operands[k] = look(op.inputs[k], layer);
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (op.inputs[k].valid()) read(operands[k], UseKind::Input, k);
  std::vector<std::pair<TensorId, Value>> made;
  for (const auto* list : {&op.outputs, &op.auxiliaries})
    for (size_t k = 0; k < list->size(); ++k) {
      const TensorId tensor = (*list)[k];
      if (!tensor.valid()) continue;
      const BufferKind kind = chain_.facts.saved_index[tensor.index()] >= 0 ? BufferKind::Activation
                                                                            : BufferKind::Transient;
      const Value value = {make(here_.team, kind, tensor, here_.micro_batch), -1, {}};
      write(value, list == &op.outputs ? UseKind::Output : UseKind::Auxiliary, k);
      made.emplace_back(tensor, value);
    }
  const TaskId task =
      emit({.kind = here_.kind == TaskKind::Backward ? TaskKind::Recompute : here_.kind,
            .price = work(id),
            .op = id,
            .how = sharding(id)});
  for (auto& [tensor, value] : made) {
    value.ready = task;
    (plain ? brought_ : *here_.now)[tensor] = value;
  }
}

void OpSink::backward(OpId id, int32_t layer) {
  const Op& op = training_.graph[id];
  const auto& term_of = chain_.facts.term_of;
  if (op_info(op.kind).view) {
    if (op.outputs[0].valid() && term_of[op.outputs[0].index()] >= 0)
      add_term(term_of[op.outputs[0].index()], op.outputs[0], layer);
    return;
  }
  if (!op.forward.valid()) return sum(id, layer);
  std::vector<Value> operands(op.inputs.size());
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (op.inputs[k].valid()) operands[k] = look(op.inputs[k], layer);
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (op.inputs[k].valid()) read(operands[k], UseKind::Input, k);
  std::vector<std::pair<TensorId, Value>> made;
  std::vector<Place*> begun;
  for (size_t k = 0; k < op.outputs.size(); ++k) {
    const TensorId tensor = op.outputs[k];
    if (!tensor.valid()) continue;
    const int32_t update = term_of[tensor.index()];
    if (update >= 0) {
      Place& target = place(layer, chain_.facts.updates[static_cast<size_t>(update)].weight);
      write_gradient(target, UseKind::Output, k);
      begun.push_back(&target);
      continue;
    }
    const Value value = {
        make(here_.team, BufferKind::Transient, tensor, here_.micro_batch), -1, {}};
    write(value, UseKind::Output, k);
    made.emplace_back(tensor, value);
  }
  const TaskId task =
      emit({.kind = TaskKind::Backward, .price = work(id), .op = id, .how = sharding(id)});
  for (auto& [tensor, value] : made) {
    value.ready = task;
    (*here_.now)[tensor] = value;
  }
  for (Place* target : begun) target->gradient.ready = task;
}

void OpSink::write_gradient(Place& target, UseKind kind, size_t index) {
  if (!target.begun) {
    const TensorId tensor = chain_.facts.updates[static_cast<size_t>(target.update)].gradient;
    target.gradient = {make(here_.team, BufferKind::WeightGradient, tensor, -1), -1, {}};
  }
  write(target.gradient, kind, index, target.begun);
  target.begun = true;
}

void OpSink::sum(OpId id, int32_t layer) {
  const Op& op = training_.graph[id];
  const TensorId tensor = op.outputs[0];
  std::vector<Value> terms;
  for (TensorId input : op.inputs) terms.push_back(look(input, layer));
  for (size_t k = 0; k < terms.size(); ++k) read(terms[k], UseKind::Term, k);
  Value value = {make(here_.team, BufferKind::Transient, tensor, here_.micro_batch), -1, {}};
  write(value, UseKind::Sum, 0);
  const int64_t size = graph_[value.buffer].bytes.value;
  value.ready = emit({.kind = TaskKind::Backward,
                      .price = work(memory_work(Bytes(2 * size), Bytes(size))),
                      .op = id});
  (*here_.now)[tensor] = value;
}

void OpSink::add_term(int32_t update, TensorId term, int32_t layer) {
  Place& target = place(layer, chain_.facts.updates[static_cast<size_t>(update)].weight);
  const Value value = look(term, layer);
  read(value, UseKind::Term, 0);
  write_gradient(target, UseKind::Sum, 0);
  const int64_t size = graph_[target.gradient.buffer].bytes.value;
  target.gradient.ready =
      emit({.kind = TaskKind::Backward,
            .price = work(memory_work(Bytes(2 * size), Bytes(size))),
            .tensor = chain_.facts.updates[static_cast<size_t>(update)].gradient});
}

// The value of a tensor on the team at hand. Data comes from the host, and what is made of data
// alone is made where it is wanted.
OpSink::Value OpSink::look(TensorId tensor, int32_t layer) {
  if (chain_.is_state(tensor)) return place(layer, tensor).weight;
  if (chain_.is_data(tensor)) return data(tensor);
  const OpId producer = training_.graph[tensor].producer;
  if (!producer.valid()) return constant(tensor);
  const bool plain = chain_.is_plain(tensor);
  const Values* made = plain ? &brought_ : here_.now;
  for (const Values* values : {made, here_.kept}) {
    if (values == nullptr) continue;
    if (const auto found = values->find(tensor); found != values->end()) return found->second;
  }
  const Op& op = training_.graph[producer];
  if (op_info(op.kind).view) return see(look(op.inputs[0], layer), tensor);
  ensure(plain, "a value of a pack is read before it is made");
  forward(producer);
  return brought_.at(tensor);
}

OpSink::Value OpSink::see(Value value, TensorId tensor) {
  const auto [entry, fresh] = views_.try_emplace({value.buffer.value, value.view, tensor.value},
                                                 static_cast<int32_t>(graph_.views.size()));
  if (fresh) graph_.views.push_back({.of = value.view, .tensor = tensor, .layout = layout(tensor)});
  value.view = entry->second;
  return value;
}

OpSink::Value OpSink::data(TensorId tensor) {
  if (const auto found = brought_.find(tensor); found != brought_.end()) return found->second;
  const auto [entry, fresh] = host_data_.try_emplace(tensor);
  if (fresh) entry->second.buffer = make_on_host(BufferKind::Input, tensor, -1, 0, true, false);
  Value value = {make(here_.team, BufferKind::Input, tensor, here_.micro_batch), -1, {}};
  after(before_data_[static_cast<size_t>(here_.team)].first);
  read(entry->second, UseKind::From, 0);
  write(value, UseKind::To, 0);
  value.ready =
      add({.kind = TaskKind::SwapIn,
           .price = teams_.traffic(PackMove::In, here_.team, bytes(tensor, here_.micro_batch)),
           .micro_batch = here_.micro_batch,
           .tensor = tensor},
          teams_.stash_in(here_.team), here_.team);
  return brought_[tensor] = value;
}

// Constants are where they are read from the start.
OpSink::Value OpSink::constant(TensorId tensor) {
  const auto [entry, fresh] = constants_.try_emplace({here_.team, tensor});
  if (fresh) {
    entry->second.buffer = make(here_.team, BufferKind::Weight, tensor, -1);
    Buffer& buffer = graph_.buffers[entry->second.buffer.index()];
    buffer.at_start = buffer.at_end = true;
  }
  return entry->second;
}

// The samples of a micro-batch from others that have them.
OpSink::Value OpSink::join(TensorId tensor, const std::vector<Value>& parts) {
  Value value = {make(here_.team, BufferKind::Communication, tensor, here_.micro_batch), -1, {}};
  for (const Value& part : parts) read(part, UseKind::From, 0);
  write(value, UseKind::To, 0);
  const Bytes size(bytes(tensor, here_.micro_batch));
  value.ready =
      emit({.kind = TaskKind::Join, .price = work(memory_work(size, size)), .tensor = tensor});
  return value;
}

template <class Visit>
void OpSink::for_saved(const Pack& layers, Visit&& visit) const {
  for (int32_t l = layers.first; l <= layers.last; ++l)
    for (OpId id : chain_.layers[static_cast<size_t>(l)].backward) {
      const Op& op = training_.graph[id];
      for (size_t k = op.inputs.size() - op.saved.size(); k < op.inputs.size(); ++k)
        if (op.inputs[k].valid()) visit(op.inputs[k]);
    }
}

// Forward ops of a pack that its backward pass wants the results of.
const std::vector<bool>& OpSink::needed(size_t pack) {
  const auto [entry, fresh] = needed_.try_emplace(pack);
  std::vector<bool>& ops = entry->second;
  if (!fresh) return ops;
  const Graph& graph = training_.graph;
  ops.assign(training_.forward_ops, false);
  const auto want = [&](TensorId id) {
    if (!id.valid()) return;
    const OpId producer = graph[chain_.facts.roots[id.index()]].producer;
    if (producer.valid() && producer.index() < ops.size()) ops[producer.index()] = true;
  };
  const Pack layers = strategy_.backward_packs[pack];
  for_saved(layers, want);
  for (int32_t l = layers.last; l >= layers.first; --l) {
    const auto& list = chain_.layers[static_cast<size_t>(l)].forward;
    for (size_t i = list.size(); i-- > 0;)
      if (ops[list[i].index()])
        for (TensorId id : graph[list[i]].inputs) want(id);
  }
  return ops;
}

// What the backward pass of a pack reads of its forward pass, beside its input.
const std::vector<TensorId>& OpSink::saved_of(size_t pack) {
  const auto [entry, fresh] = saved_.try_emplace(pack);
  std::vector<TensorId>& list = entry->second;
  if (!fresh) return list;
  const Pack layers = strategy_.backward_packs[pack];
  for_saved(layers, [&](TensorId id) {
    const TensorId root = chain_.facts.roots[id.index()];
    const OpId producer = training_.graph[root].producer;
    if (!producer.valid() || chain_.is_plain(root)) return;
    if (chain_.layer_of[producer.index()] < layers.first) return;
    if (std::ranges::find(list, root) == list.end()) list.push_back(root);
  });
  return list;
}

// Weights and buffers that the backward pass of a pack reads, or updates on the device.
std::set<TensorId> OpSink::state_read(size_t pack) {
  std::set<TensorId> result;
  const bool loss = pack + 1 == strategy_.backward_packs.size();
  const bool again = strategy_.actions[pack] == PackAction::Recompute;
  const auto add_state = [&](const Op& op) {
    for (TensorId id : op.inputs)
      if (id.valid() && chain_.is_state(chain_.facts.roots[id.index()]))
        result.insert(chain_.facts.roots[id.index()]);
  };
  const Pack layers = strategy_.backward_packs[pack];
  for (int32_t l = layers.first; l <= layers.last; ++l) {
    const ChainLayer& layer = chain_.layers[static_cast<size_t>(l)];
    for (OpId op : layer.backward) add_state(training_.graph[op]);
    for (OpId op : layer.forward)
      if (loss || (again && needed(pack)[op.index()])) add_state(training_.graph[op]);
    for (TensorId tensor : layer.state) {
      const int32_t update = chain_.facts.update_index[tensor.index()];
      if (strategy_.device_update[pack] != 0 && update >= 0 &&
          chain_.home[static_cast<size_t>(update)] == l)
        result.insert(tensor);
    }
  }
  return result;
}

int32_t OpSink::work(OpId id) {
  const int64_t samples = graph_.micro_batches[static_cast<size_t>(here_.micro_batch)].size();
  const auto [entry, fresh] = works_.try_emplace({id, samples}, 0);
  if (!fresh) return entry->second;
  const LoopNest nest = loops_of(training_.graph, training_.graph[id]);
  std::vector<LoopPart> parts = whole_parts(nest);
  take_samples(chain_.samples, id, nest, {0, samples}, parts);
  LocalSizes local;
  for (const LoopPart& part : parts) local.push_back(part.range.size());
  return entry->second = work(work_of(training_.graph, training_.graph[id], nest, local));
}

int32_t OpSink::work(const Work& wanted) {
  const auto found = std::ranges::find(graph_.works, wanted);
  const auto id = static_cast<int32_t>(found - graph_.works.begin());
  if (found == graph_.works.end()) graph_.works.push_back(wanted);
  return id;
}

// Replicas split the samples; what does not see them is done by each.
int32_t OpSink::sharding(OpId op) {
  const int32_t loop = strategy_.replicas == 1 ? -1 : chain_.samples.loop[op.index()];
  const auto [entry, fresh] =
      shardings_.try_emplace(loop, static_cast<int32_t>(graph_.shardings.size()));
  if (fresh) {
    Sharding sharding;
    if (strategy_.replicas > 1) sharding.splits.push_back({loop, strategy_.replicas});
    graph_.shardings.push_back(sharding);
  }
  return entry->second;
}

}  // namespace windlass
