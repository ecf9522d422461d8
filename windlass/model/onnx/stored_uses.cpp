#include "windlass/model/onnx/stored_uses.h"

#include <algorithm>
#include <set>

#include "windlass/graph/op_info.h"
#include "windlass/model/onnx/parameter_names.h"

namespace windlass {
namespace {

std::vector<bool> find_reached(const Graph& graph) {
  std::vector<bool> from(graph.tensors.size());
  for (TensorId id : graph.outputs) from[id.index()] = is_float(graph[id].type.dtype);
  if (graph.loss.valid()) from[graph.loss.index()] = true;
  return follow_gradients(graph, std::move(from));
}

// Tensors that are computed from none but those that `begins` says.
template <typename Begins>
std::vector<bool> find_made_of(const Graph& graph, Begins begins) {
  std::vector<bool> found(graph.tensors.size());
  for (size_t t = 0; t < found.size(); ++t)
    found[t] = !graph.tensors[t].producer.valid() && begins(graph.tensors[t]);
  for (const Op& op : graph.ops) {
    const bool all = std::all_of(op.inputs.begin(), op.inputs.end(),
                                 [&](TensorId id) { return !id.valid() || found[id.index()]; });
    for (TensorId id : op.outputs) found[id.index()] = all;
  }
  return found;
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

bool is_function(const Op& op, UnaryFn fn) {
  const auto* unary = std::get_if<UnaryAttrs>(&op.attrs);
  return op.kind == OpKind::Unary && unary->fn == fn;
}

bool is_wave(const Op& op) {
  return is_function(op, UnaryFn::Sin) || is_function(op, UnaryFn::Cos);
}

// Ops that hand a table on as it is, or parts of it.
bool hands_on(const Op& op, size_t input) {
  switch (op.kind) {
    case OpKind::Cast:
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Concat:
    case OpKind::Split:
    case OpKind::Expand: return true;
    case OpKind::Gather: return input == 0;
    case OpKind::Embedding: return input == 1;
    default: return false;
  }
}

bool hands_on(const Op& op, TensorId id) {
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (op.inputs[k] == id && !hands_on(op, k)) return false;
  return true;
}

std::vector<bool> find_standardised(const Graph& graph) {
  std::vector<bool> data(graph.tensors.size()), named(graph.tensors.size()), found(named);
  for (size_t t = 0; t < data.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    data[t] = tensor.role == TensorRole::Input;
    named[t] = tensor.role == TensorRole::Weight && is_name_of_data(tensor.name);
  }
  std::vector<TensorId> origin(graph.tensors.size());
  for (const Op& op : graph.ops) {
    if (op.outputs.size() != 1) continue;
    const size_t result = op.outputs[0].index();
    if (op.kind == OpKind::Reshape || op.kind == OpKind::Cast || op.kind == OpKind::Expand ||
        op.kind == OpKind::Transpose) {
      const size_t given = op.inputs[0].index();
      data[result] = data[given];
      named[result] = named[given];
      origin[result] = origin[given].valid() ? origin[given] : op.inputs[0];
      continue;
    }
    const auto* binary = std::get_if<BinaryAttrs>(&op.attrs);
    if (op.kind != OpKind::Binary || !binary || !data[op.inputs[0].index()]) continue;
    if (binary->fn != BinaryFn::Sub && binary->fn != BinaryFn::Div) continue;
    const size_t by = op.inputs[1].index();
    // Bytes are divided by 255 before.
    if (graph.tensors[by].role == TensorRole::Constant) data[result] = true;
    if (!named[by]) continue;
    found[origin[by].valid() ? origin[by].index() : by] = true;
    data[result] = true;
  }
  return found;
}

}  // namespace

std::vector<bool> follow_gradients(const Graph& graph, std::vector<bool> reached) {
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

StoredUses::StoredUses(const Graph& graph)
    : graph_(graph),
      consumers_(consumers_of(graph)),
      reached_(find_reached(graph)),
      positional_(find_made_of(graph,
                               [](const Tensor& tensor) {
                                 return tensor.role == TensorRole::Constant ||
                                        !is_float(tensor.type.dtype);
                               })),
      stored_(find_made_of(graph,
                           [](const Tensor& tensor) {
                             return tensor.role != TensorRole::Input &&
                                    tensor.role != TensorRole::Label;
                           })),
      standardised_(find_standardised(graph)),
      waves_(std::any_of(graph.ops.begin(), graph.ops.end(), is_wave)) {}

bool StoredUses::feeds(TensorId id, OpKind kind) const {
  const std::vector<OpId>& all = consumers_[id.index()];
  return std::any_of(all.begin(), all.end(), [&](OpId op) { return graph_[op].kind == kind; });
}

bool StoredUses::is_frequency(TensorId id) const { return ends_in_waves(id, false); }

bool StoredUses::is_frequency_of_data(TensorId id) const { return ends_in_waves(id, true); }

bool StoredUses::ends_in_waves(TensorId weight, bool data) const {
  // Real ones are a few ops away from their sines; many weights may lead into one long chain.
  constexpr size_t kMaxDerived = 1000;
  // Frequencies are few; walking from every matrix of a large model would be slow for nothing.
  constexpr int64_t kMostFrequencies = 4096;
  if (!waves_ || element_count(graph_[weight].type.shape) > kMostFrequencies) return false;
  std::set<TensorId> derived = {weight};
  std::vector<TensorId> open = {weight};
  bool sine = false, cosine = false;
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    if (derived.size() > kMaxDerived || is_output(id)) return false;
    for (OpId consumer : consumers_[id.index()]) {
      const Op& op = graph_[consumer];
      if (is_wave(op)) {
        (is_function(op, UnaryFn::Sin) ? sine : cosine) = true;
        continue;
      }
      if (!may_carry_frequencies(op.kind)) return false;
      for (TensorId input : op.inputs)
        if (input.valid() && !derived.contains(input) && !positional_[input.index()] &&
            (!data || stored_[input.index()]))
          return false;
      for (TensorId output : op.outputs)
        if (derived.insert(output).second) open.push_back(output);
    }
  }
  return data ? sine && cosine : sine || cosine;
}

bool StoredUses::is_only_combined(TensorId id, bool functions) const {
  return is_combined(id, functions, false);
}

bool StoredUses::is_combined_or_layered(TensorId id) const { return is_combined(id, false, true); }

bool StoredUses::is_combined(TensorId weight, bool functions, bool layers) const {
  constexpr size_t kMaxSteps = 100;
  std::vector<TensorId> open = {weight};
  for (size_t next = 0; next < open.size(); ++next) {
    if (open.size() > kMaxSteps || is_output(open[next])) return false;
    const TensorId id = open[next];
    for (OpId consumer : consumers_[id.index()]) {
      const Op& op = graph_[consumer];
      if (op.kind == OpKind::Binary || op.kind == OpKind::Where) continue;
      if (functions && (op.kind == OpKind::Unary || op.kind == OpKind::Softmax)) continue;
      if (layers && (op.kind == OpKind::MatMul || op.kind == OpKind::Linear) &&
          stored_[op.inputs[0].index()] && stored_[op.inputs[1].index()])
        continue;
      if (!hands_on(op, id)) return false;
      open.insert(open.end(), op.outputs.begin(), op.outputs.end());
    }
  }
  return true;
}

bool StoredUses::is_operand(TensorId weight) const {
  constexpr size_t kMaxSteps = 100;
  std::vector<TensorId> open = {weight};
  for (size_t next = 0; next < open.size(); ++next) {
    if (open.size() > kMaxSteps || is_output(open[next])) return false;
    const TensorId id = open[next];
    for (OpId consumer : consumers_[id.index()]) {
      const Op& op = graph_[consumer];
      switch (op.kind) {
        case OpKind::Binary:
        case OpKind::Where:
        case OpKind::MatMul: continue;
        case OpKind::Linear:
        case OpKind::Conv:
          if (op.inputs.size() > 2 && op.inputs[2] == id) return false;  // a bias
          continue;
        case OpKind::Concat:
          if (!stored_[op.outputs[0].index()]) continue;
          break;
        default: break;
      }
      if (!hands_on(op, id)) return false;
      open.insert(open.end(), op.outputs.begin(), op.outputs.end());
    }
  }
  return true;
}

bool StoredUses::is_only_filter(TensorId weight) const {
  const std::vector<OpId>& all = consumers_[weight.index()];
  return !all.empty() && std::all_of(all.begin(), all.end(), [&](OpId id) {
    return graph_[id].kind == OpKind::Conv && graph_[id].inputs[1] == weight;
  });
}

bool StoredUses::is_only_looked_up(TensorId weight) const {
  const std::vector<OpId>& all = consumers_[weight.index()];
  return graph_[weight].type.shape.size() == 1 && !all.empty() &&
         std::all_of(all.begin(), all.end(), [&](OpId id) {
           const Op& op = graph_[id];
           return (op.kind == OpKind::Gather || op.kind == OpKind::GatherElements) &&
                  op.inputs[0] == weight && !stored_[op.inputs[1].index()];
         });
}

bool StoredUses::is_output(TensorId id) const {
  return std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end();
}

}  // namespace windlass
