#include "windlass/graph/reference/mean_counts.h"

#include <map>

#include "windlass/graph/from_data.h"

namespace windlass {
namespace {

// Runs the ops that make `labels`, as far as they are needed.
Array make_labels(const Graph& graph, TensorId labels, const std::vector<OpId>& ops,
                  const std::function<Array(TensorId)>& data) {
  std::map<TensorId, Array> values;
  const auto read = [&](TensorId id) -> const Array* {
    if (!id.valid()) return nullptr;
    const auto [found, fresh] = values.try_emplace(id);
    const Tensor& tensor = graph[id];
    if (fresh)
      found->second = tensor.constant >= 0
                          ? Array(tensor.type.shape,
                                  graph.constants[static_cast<size_t>(tensor.constant)].values)
                          : data(id);
    return &found->second;
  };
  for (OpId id : ops) {
    const Op& op = graph[id];
    std::vector<const Array*> inputs;
    for (TensorId input : op.inputs) inputs.push_back(read(input));
    ForwardResult made = interpret_forward(signature_of(graph, op), inputs);
    for (size_t k = 0; k < op.outputs.size(); ++k)
      if (op.outputs[k].valid()) values[op.outputs[k]] = std::move(made.outputs[k]);
  }
  return *read(labels);
}

}  // namespace

std::vector<double> mean_counts(const Graph& graph, int32_t micro_batches,
                                const MicroBatchData& data) {
  std::vector<double> counts(graph.ops.size(), -1);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.kind != OpKind::CrossEntropy || op.forward.valid()) continue;
    const std::optional<std::vector<OpId>> ops = ops_from_data(graph, op.inputs[1]);
    if (!ops) continue;
    double total = 0;
    for (int32_t m = 0; m < micro_batches; ++m)
      total += counted_labels(
          std::get<CrossEntropyAttrs>(op.attrs),
          make_labels(graph, op.inputs[1], *ops, [&](TensorId id) { return data(id, m); }));
    counts[i] = total / micro_batches;
  }
  return counts;
}

}  // namespace windlass
