#include "windlass/model/onnx/parameters.h"

#include <algorithm>
#include <set>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

// Tensors from which a gradient could reach an output or the loss.
std::vector<bool> find_differentiable(const Graph& graph) {
  std::vector<bool> reached(graph.tensors.size());
  for (TensorId id : graph.outputs) reached[id.index()] = is_float(graph[id].type.dtype);
  if (graph.loss.valid()) reached[graph.loss.index()] = true;
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    const OpInfo& info = op_info(op.kind);
    const bool any = std::any_of(op.outputs.begin(), op.outputs.end(),
                                 [&](TensorId id) { return reached[id.index()]; });
    if (!any || !info.gradient) continue;
    const GradientRule rule =
        info.gradient(signature_of(graph, op), std::vector<bool>(op.inputs.size(), true));
    for (size_t k = 0; k < op.inputs.size(); ++k)
      if (op.inputs[k].valid() && rule.inputs[k] != GradientSource::None)
        reached[op.inputs[k].index()] = true;
  }
  return reached;
}

// Tensors made of constants and whole numbers only: positions, masks, indices.
std::vector<bool> find_positional(const Graph& graph) {
  std::vector<bool> positional(graph.tensors.size());
  for (size_t t = 0; t < positional.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    positional[t] = !tensor.producer.valid() &&
                    (tensor.role == TensorRole::Constant || !is_float(tensor.type.dtype));
  }
  for (const Op& op : graph.ops) {
    const bool all = std::all_of(op.inputs.begin(), op.inputs.end(), [&](TensorId id) {
      return !id.valid() || positional[id.index()];
    });
    for (TensorId id : op.outputs) positional[id.index()] = all;
  }
  return positional;
}

bool may_carry_frequencies(OpKind kind) {
  switch (kind) {
    case OpKind::Unary:
    case OpKind::Binary:
    case OpKind::MatMul:
    case OpKind::Cast:
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Concat:
    case OpKind::Expand:
    case OpKind::Gather: return true;
    default: return false;
  }
}

bool is_wave(const Op& op) {
  const auto* unary = std::get_if<UnaryAttrs>(&op.attrs);
  return op.kind == OpKind::Unary && (unary->fn == UnaryFn::Sin || unary->fn == UnaryFn::Cos);
}

// Whether everything that becomes of `weight` ends in sines and cosines, having met only positions.
bool is_frequency(const Graph& graph, const std::vector<std::vector<OpId>>& consumers,
                  const std::vector<bool>& positional, TensorId weight) {
  // Real ones are a few ops away from their sines; many weights may lead into one long chain.
  constexpr size_t kMaxDerived = 1000;
  std::set<TensorId> derived = {weight};
  std::vector<TensorId> open = {weight};
  bool waves = false;
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    if (derived.size() > kMaxDerived) return false;
    if (std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end())
      return false;
    for (OpId consumer : consumers[id.index()]) {
      const Op& op = graph[consumer];
      if (is_wave(op)) {
        waves = true;
        continue;
      }
      if (!may_carry_frequencies(op.kind)) return false;
      for (TensorId input : op.inputs)
        if (input.valid() && !derived.contains(input) && !positional[input.index()]) return false;
      for (TensorId output : op.outputs)
        if (derived.insert(output).second) open.push_back(output);
    }
  }
  return waves;
}

}  // namespace

int demote_buffers(Graph& graph) {
  const std::vector<bool> differentiable = find_differentiable(graph);
  const std::vector<bool> positional = find_positional(graph);
  const auto consumers = consumers_of(graph);
  const bool waves = std::any_of(graph.ops.begin(), graph.ops.end(), is_wave);
  int count = 0;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].role != TensorRole::Weight) continue;
    // Frequencies are vectors; walking from every matrix of a large model would be slow for
    // nothing.
    const bool small = element_count(graph.tensors[t].type.shape) <= 4096;
    if (differentiable[t] &&
        !(waves && small && is_frequency(graph, consumers, positional, TensorId(t))))
      continue;
    graph.tensors[t].role = TensorRole::Buffer;
    graph.tensors[t].trainable = false;
    ++count;
  }
  return count;
}

}  // namespace windlass
