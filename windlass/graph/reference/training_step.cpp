#include "windlass/graph/reference/training_step.h"

#include <utility>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

const Array* find_value(const TensorValues& values, TensorId id) {
  if (!id.valid()) return nullptr;
  const Array& array = values[id.index()];
  ensure(!array.values.empty() || element_count(array.shape) == 0,
         fmt::format("tensor {} is not there", id.value));
  return &array;
}

PieceFacts facts_of(OpId forward, const std::vector<double>& mean_counts) {
  PieceFacts facts;
  if (!mean_counts.empty()) facts.mean_count = mean_counts[forward.index()];
  return facts;
}

void forward_op(const Graph& graph, OpId id, TensorValues& values, const RandomStates& random,
                const std::vector<double>& mean_counts) {
  const Op& op = graph[id];
  std::vector<const Array*> inputs;
  for (TensorId input : op.inputs) inputs.push_back(find_value(values, input));
  ForwardResult result =
      interpret_forward(signature_of(graph, op), inputs, random(id), facts_of(id, mean_counts));
  if (op.kind != OpKind::CrossEntropy && !mean_counts.empty() && mean_counts[id.index()] >= 0)
    result.outputs[0] = Array(result.outputs[0].shape, mean_counts[id.index()]);
  for (size_t k = 0; k < op.outputs.size(); ++k)
    values[op.outputs[k].index()] = std::move(result.outputs[k]);
  for (size_t k = 0; k < op.auxiliaries.size(); ++k)
    if (op.auxiliaries[k].valid())
      values[op.auxiliaries[k].index()] = std::move(result.auxiliaries[k]);
}

void backward_op(const Graph& graph, OpId id, TensorValues& values, const RandomStates& random,
                 const std::vector<double>& mean_counts) {
  const Op& op = graph[id];
  const Signature signature = signature_of(graph, op);
  const std::vector<bool> wanted = wanted_of(op);
  const GradientRule rule = op_info(op.kind).gradient(signature, wanted);
  ensure(rule.saved == op.saved, "a backward op reads other tensors than its rule says");
  std::vector<const Array*> gradients, saved;
  for (size_t k = 0; k < op.inputs.size(); ++k)
    (k < signature.outputs.size() ? gradients : saved).push_back(find_value(values, op.inputs[k]));
  std::vector<Array> result =
      interpret_backward(signature, rule, wanted, gradients, saved, random(op.forward),
                         facts_of(op.forward, mean_counts));
  for (size_t k = 0; k < op.outputs.size(); ++k)
    if (op.outputs[k].valid()) values[op.outputs[k].index()] = std::move(result[k]);
}

// Forgets what the forward pass computed, but for what is saved and the views of it.
void forget_unsaved(const TrainingGraph& training, TensorValues& values) {
  const std::vector<TensorId> roots = storage_roots(training.graph);
  std::vector<bool> saved(values.size(), false);
  for (const SavedTensor& tensor : training.saved) saved[tensor.tensor.index()] = true;
  for (size_t t = 0; t < values.size(); ++t) {
    const TensorRole role = training.graph[roots[t]].role;
    const bool stays =
        role == TensorRole::Weight || role == TensorRole::Buffer || role == TensorRole::Constant;
    if (!stays && !saved[roots[t].index()]) values[t] = Array();
  }
}

}  // namespace

void reference_forward(const TrainingGraph& training, TensorValues& values,
                       const RandomStates& random, const std::vector<double>& mean_counts) {
  const Graph& graph = training.graph;
  ensure(values.size() == graph.tensors.size(), "values of another graph");
  for (size_t t = 0; t < values.size(); ++t)
    if (graph.tensors[t].constant >= 0)
      values[t] = Array(graph.tensors[t].type.shape,
                        graph.constants[static_cast<size_t>(graph.tensors[t].constant)].values);
  for (size_t i = 0; i < training.forward_ops; ++i)
    forward_op(graph, OpId(i), values, random, mean_counts);
}

void reference_step(const TrainingGraph& training, TensorValues& values, const RandomStates& random,
                    const std::vector<double>& mean_counts) {
  reference_forward(training, values, random, mean_counts);
  forget_unsaved(training, values);
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i) {
    if (training.graph.ops[i].forward.valid())
      backward_op(training.graph, OpId(i), values, random, mean_counts);
    else
      forward_op(training.graph, OpId(i), values, random, mean_counts);  // Accumulate
  }
}

}  // namespace windlass
