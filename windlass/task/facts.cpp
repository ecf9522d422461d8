#include "windlass/task/facts.h"

#include <algorithm>

namespace windlass {

TrainingFacts::TrainingFacts(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  const size_t tensors = graph.tensors.size();
  roots = storage_roots(graph);
  for (const Tensor& tensor : graph.tensors) {
    element_size.push_back(static_cast<uint8_t>(element_bytes(tensor.type.dtype)));
    Origin from = Origin::Fixed;
    if (tensor.producer.valid())
      from = Origin::Made;
    else if (tensor.role == TensorRole::Weight)
      from = Origin::Weight;
    else if (tensor.role == TensorRole::Input || tensor.role == TensorRole::Label)
      from = Origin::Data;
    origin.push_back(from);
  }
  std::vector<int32_t> by_root(tensors, -1);
  for (size_t i = 0; i < training.saved.size(); ++i)
    by_root[training.saved[i].tensor.index()] = static_cast<int32_t>(i);
  saved_index.resize(tensors);
  for (size_t t = 0; t < tensors; ++t) saved_index[t] = by_root[roots[t].index()];

  update_index.assign(tensors, -1);
  first_use.resize(graph.ops.size() - training.forward_ops - training.backward_ops);
  term_of.assign(tensors, -1);
  dropped.assign(graph.ops.size(), false);
  const size_t first_update = training.forward_ops + training.backward_ops;
  std::vector<int32_t> readers(tensors, 0);
  for (const Op& op : graph.ops)
    for (TensorId id : op.inputs)
      if (id.valid()) ++readers[id.index()];
  for (size_t i = first_update; i < graph.ops.size(); ++i) {
    const auto update = static_cast<int32_t>(i - first_update);
    const Op& op = graph.ops[i];
    update_index[op.inputs[0].index()] = update;
    Update& facts = updates.emplace_back();
    facts.weight = op.inputs[0];
    facts.gradient = op.inputs[1];
    facts.weight_size = element_bytes(graph[facts.weight].type.dtype);
    facts.gradient_size = element_bytes(graph[facts.gradient].type.dtype);
    for (size_t k = 2; k < op.inputs.size(); ++k)
      if (op.inputs[k].valid()) facts.state_size += element_bytes(graph[op.inputs[k]].type.dtype);
    std::vector<TensorId> pending = {op.inputs[1]};
    while (!pending.empty()) {
      const TensorId id = pending.back();
      pending.pop_back();
      const OpId producer = graph[id].producer;
      const bool sum = producer.valid() && graph[producer].kind == OpKind::Accumulate &&
                       readers[id.index()] == 1;
      if (sum) {
        dropped[producer.index()] = true;
        for (TensorId term : graph[producer].inputs) pending.push_back(term);
        continue;
      }
      terms.push_back({update, producer});
      // A gradient that others read too is added by a task of its own, and so is the second one
      // that an op makes of the same weight: that of a weight times itself.
      const auto another = [&](TensorId other) {
        return other.valid() && term_of[other.index()] == update;
      };
      const bool second = producer.valid() && std::ranges::any_of(graph[producer].outputs, another);
      if (graph[id].role == TensorRole::WeightGradient && readers[id.index()] == 1 && !second)
        term_of[id.index()] = update;
      else if (producer.valid())
        shared_terms.emplace_back(update, id);
    }
  }
  for (size_t i = training.forward_ops; i-- > 0;)
    for (size_t k = 0; k < graph.ops[i].inputs.size(); ++k) {
      const TensorId id = graph.ops[i].inputs[k];
      if (id.valid() && update_index[id.index()] >= 0)
        first_use[static_cast<size_t>(update_index[id.index()])] = {OpId(i),
                                                                    static_cast<int32_t>(k)};
    }
}

}  // namespace windlass
