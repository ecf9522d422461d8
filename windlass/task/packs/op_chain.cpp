#include "windlass/task/packs/op_chain.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/cost/model_chain.h"
#include "windlass/graph/network_layers.h"

namespace windlass {
namespace {

void add_once(std::vector<TensorId>& list, TensorId id) {
  if (std::ranges::find(list, id) == list.end()) list.push_back(id);
}

// What crosses a border between layers is one tensor.
void cross(TensorId& passed, TensorId tensor, const Graph& graph, size_t layer) {
  if (!passed.valid()) passed = tensor;
  if (passed != tensor)
    fail_unsupported(
        "{}: \"{}\" and \"{}\" are both passed on to layer {}; packs of layers pass one tensor, "
        "so the network cannot be carried out in packs",
        graph.name, graph[passed].name, graph[tensor].name, layer);
}

}  // namespace

OpChain::OpChain(const TrainingGraph& step)
    : training(step), facts(step), samples(find_samples(step)) {
  const Graph& graph = training.graph;
  layer_of = find_layers(graph);
  if (layer_of.back() < 1)
    fail_unsupported("{}: no place to cut the network into layers", graph.name);
  layers.resize(static_cast<size_t>(layer_of.back()) + 1);
  bytes = bytes_of_layers(training, layer_of, samples.samples);
  find_plain();
  list_forward();
  list_backward();
  pass_on();
  pass_back();
}

bool OpChain::is_data(TensorId tensor) const {
  const Tensor& t = training.graph[tensor];
  return !t.producer.valid() && samples.axis[tensor.index()] >= 0;
}

bool OpChain::is_state(TensorId tensor) const {
  const TensorRole role = training.graph[tensor].role;
  return role == TensorRole::Weight || role == TensorRole::Buffer;
}

void OpChain::find_plain() {
  const Graph& graph = training.graph;
  plain_.assign(graph.tensors.size(), false);
  for (size_t t = 0; t < plain_.size(); ++t)
    plain_[t] = !graph.tensors[t].producer.valid() && !is_state(TensorId(t));
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = graph.ops[i];
    const bool plain = std::ranges::all_of(
        op.inputs, [&](TensorId id) { return !id.valid() || plain_[id.index()]; });
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId id : *list) plain_[id.index()] = plain;
  }
}

void OpChain::list_forward() {
  const Graph& graph = training.graph;
  home.assign(facts.updates.size(), -1);
  for (size_t l = 0; l < layers.size(); ++l) {
    ChainLayer& layer = layers[l];
    std::vector<bool> wanted(training.forward_ops, false);
    for (size_t i = training.forward_ops; i-- > 0;) {
      const Op& op = graph.ops[i];
      const bool plain = plain_[op.outputs[0].index()];
      if (!plain) wanted[i] = layer_of[i] == static_cast<int32_t>(l);
      if (!wanted[i]) continue;
      for (TensorId id : op.inputs)
        if (id.valid() && plain_[id.index()] && graph[id].producer.valid())
          wanted[graph[id].producer.index()] = true;
    }
    for (size_t i = 0; i < training.forward_ops; ++i) {
      if (!wanted[i]) continue;
      if (op_info(graph.ops[i].kind).view) continue;
      if (!plain_[graph.ops[i].outputs[0].index()]) layer.forward.emplace_back(i);
      for (TensorId input : graph.ops[i].inputs) {
        if (!input.valid()) continue;
        const TensorId id = facts.roots[input.index()];
        if (is_data(id)) add_once(layer.data, id);
        if (!is_state(id)) continue;
        add_once(layer.state, id);
        const int32_t update = facts.update_index[id.index()];
        if (update >= 0 && home[static_cast<size_t>(update)] < 0)
          home[static_cast<size_t>(update)] = static_cast<int32_t>(l);
      }
    }
  }
}

// A sum of gradients is made where its last term comes from: the earliest layer. A view of a
// gradient is where the gradient is.
void OpChain::list_backward() {
  const Graph& graph = training.graph;
  const size_t end = training.forward_ops + training.backward_ops;
  layer_of.resize(end, 0);
  for (size_t i = training.forward_ops; i < end; ++i) {
    const Op& op = graph.ops[i];
    int32_t layer = static_cast<int32_t>(layers.size()) - 1;
    if (op.forward.valid() && !op_info(op.kind).view)
      layer = layer_of[op.forward.index()];
    else
      for (TensorId id : op.inputs)
        if (id.valid() && graph[id].producer.valid())
          layer = std::min(layer, layer_of[graph[id].producer.index()]);
    layer_of[i] = layer;
    if (!facts.dropped[i]) layers[static_cast<size_t>(layer)].backward.emplace_back(i);
  }
  for (const auto& [update, term] : facts.shared_terms)
    layers[static_cast<size_t>(term_layer(update, term))].shared_terms.emplace_back(update, term);
}

// The layer that reads a weight and through which the term of its gradient passes.
int32_t OpChain::term_layer(int32_t update, TensorId term) const {
  const TensorId weight = facts.updates[static_cast<size_t>(update)].weight;
  int32_t layer = layer_of[training.graph[term].producer.index()];
  while (layer > 0 && std::ranges::find(layers[static_cast<size_t>(layer)].state, weight) ==
                          layers[static_cast<size_t>(layer)].state.end())
    --layer;
  return layer;
}

void OpChain::pass_on() {
  const Graph& graph = training.graph;
  for (size_t l = 0; l < layers.size(); ++l)
    for (OpId op : layers[l].forward)
      for (TensorId id : graph[op].inputs) {
        if (!id.valid()) continue;
        const TensorId root = facts.roots[id.index()];
        if (!graph[root].producer.valid() || plain_[root.index()]) continue;
        const auto made = static_cast<size_t>(layer_of[graph[root].producer.index()]);
        for (size_t k = made + 1; k <= l; ++k) cross(layers[k].input, root, graph, k);
      }
  for (size_t l = 1; l < layers.size(); ++l)
    if (!layers[l].input.valid())
      fail_unsupported("{}: nothing is passed on to layer {}", graph.name, l);
}

void OpChain::pass_back() {
  const Graph& graph = training.graph;
  const auto read = [&](TensorId id, size_t layer) {
    const TensorId root = facts.roots[id.index()];
    const OpId producer = graph[root].producer;
    if (!producer.valid() || producer.index() < training.forward_ops) return;
    const auto made = static_cast<size_t>(layer_of[producer.index()]);
    for (size_t k = layer + 1; k <= made; ++k) cross(layers[k].gradient, root, graph, k);
  };
  for (size_t l = 0; l < layers.size(); ++l) {
    for (OpId op : layers[l].backward) {
      if (op_info(graph[op].kind).view) continue;
      const size_t gradients = graph[op].inputs.size() - graph[op].saved.size();
      for (size_t k = 0; k < gradients; ++k)
        if (graph[op].inputs[k].valid()) read(graph[op].inputs[k], l);
    }
    for (const auto& [update, term] : layers[l].shared_terms) read(term, l);
  }
}

}  // namespace windlass
