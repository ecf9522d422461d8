#include "windlass/graph/rewrite.h"

#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"

namespace windlass {

Rewriter::Rewriter(Graph& graph) : graph_(graph), old_(graph.ops) {
  uses_.resize(graph.tensors.size());
  for (const Op& op : graph.ops)
    for (TensorId id : op.inputs)
      if (id.valid()) ++uses_[id.index()];
  for (TensorId id : graph.outputs) ++uses_[id.index()];
  if (graph.loss.valid()) ++uses_[graph.loss.index()];
  renamed_.resize(graph.tensors.size());
}

const Op* Rewriter::producer(TensorId id) const {
  if (!id.valid() || id.index() >= uses_.size()) return nullptr;
  const OpId op = graph_[id].producer;
  return op.valid() ? &old_[op.index()] : nullptr;
}

const Op* Rewriter::producer(TensorId id, OpKind kind) const {
  const Op* op = producer(id);
  return op && op->kind == kind ? op : nullptr;
}

const std::vector<double>* Rewriter::value(TensorId id) const {
  const int32_t index = graph_[id].constant;
  return index < 0 ? nullptr : &graph_.constants[static_cast<size_t>(index)].values;
}

TensorId Rewriter::current(TensorId id) const {
  while (id.valid() && id.index() < renamed_.size() && renamed_[id.index()].valid())
    id = renamed_[id.index()];
  return id;
}

TensorId Rewriter::emit(OpKind kind, Attrs attrs, std::vector<TensorId> inputs, std::string name) {
  Op op{.kind = kind,
        .attrs = std::move(attrs),
        .inputs = std::move(inputs),
        .name = std::move(name)};
  for (TensorId& id : op.inputs) id = current(id);
  for (const TensorType& type : op_info(kind).infer(signature_of(graph_, op))) {
    graph_.tensors.push_back({.name = op.name, .type = type, .producer = {}});
    op.outputs.push_back(TensorId(graph_.tensors.size() - 1));
  }
  ops_.push_back(std::move(op));
  return ops_.back().outputs.front();
}

TensorId Rewriter::constant(std::string name, TensorType type, std::vector<double> values) {
  graph_.constants.push_back({std::move(values)});
  graph_.tensors.push_back({.name = std::move(name),
                            .type = std::move(type),
                            .role = TensorRole::Constant,
                            .producer = {},
                            .constant = static_cast<int32_t>(graph_.constants.size()) - 1});
  return TensorId(graph_.tensors.size() - 1);
}

void Rewriter::keep(const Op& op) {
  ops_.push_back(op);
  for (TensorId& id : ops_.back().inputs) id = current(id);
}

void Rewriter::replace(const Op& old, OpKind kind, Attrs attrs, std::vector<TensorId> inputs) {
  Op op{.kind = kind,
        .attrs = std::move(attrs),
        .inputs = std::move(inputs),
        .outputs = {old.outputs.front()},
        .name = old.name};
  for (TensorId& id : op.inputs) id = current(id);
  const std::vector<TensorType> types = op_info(kind).infer(signature_of(graph_, op));
  ensure(types.size() == 1 && types[0] == graph_[op.outputs[0]].type,
         "a rewritten op has another type");
  ops_.push_back(std::move(op));
}

void Rewriter::substitute(TensorId old, TensorId replacement) {
  replacement = current(replacement);
  ensure(graph_[old].type == graph_[replacement].type, "a substituted tensor has another type");
  if (replacement != old) renamed_[old.index()] = replacement;
}

void Rewriter::finish() {
  for (TensorId& id : graph_.outputs) id = current(id);
  graph_.loss = current(graph_.loss);
  graph_.ops = std::move(ops_);
  for (Tensor& tensor : graph_.tensors) tensor.producer = {};
  for (size_t i = 0; i < graph_.ops.size(); ++i)
    for (TensorId id : graph_.ops[i].outputs) graph_[id].producer = OpId(i);
  // A substituted tensor may be left without producer; it must not look like a source.
  std::vector<bool> orphan(graph_.tensors.size());
  for (const Op& op : old_)
    for (TensorId id : op.outputs) orphan[id.index()] = !graph_[id].producer.valid();
  for (const Op& op : graph_.ops)
    for (TensorId id : op.inputs)
      ensure(!id.valid() || !orphan[id.index()], "a rewritten graph reads a removed tensor");
  remove_dead(graph_);
}

}  // namespace windlass
