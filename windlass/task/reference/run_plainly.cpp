// The plain step: what the slow executor of task graphs is held against.

#include "windlass/base/error.h"
#include "windlass/graph/reference/mean_counts.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass {

StepEnd run_plainly(const TrainingGraph& training, const StepStart& start) {
  ensure(!training.unequal, "micro-batches of unequal sizes are held against the batch");
  StepEnd end;
  const Graph& graph = training.graph;
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t i = first_update; i < graph.ops.size(); ++i)
    end.gradients.emplace_back(graph[graph.ops[i].inputs[0]].type.shape);
  const std::vector<double> counts =
      mean_counts({&graph}, start.batch, start.micro_batches, start.data);
  for (int32_t m = 0; m < start.micro_batches; ++m) {
    TensorValues values = start.values;
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].role == TensorRole::Input || graph.tensors[t].role == TensorRole::Label)
        values[t] = start.data(TensorId(t), m);
    const auto random = [&](OpId op) { return start.random(op, m); };
    reference_forward(training, values, random, counts);
    end.losses.push_back(values[graph.loss.index()].values[0]);
    reference_step(training, values, random, counts);
    for (size_t i = first_update; i < graph.ops.size(); ++i) {
      Array& sum = end.gradients[i - first_update];
      const Array& term = values[graph.ops[i].inputs[1].index()];
      for (size_t k = 0; k < sum.values.size(); ++k)
        sum.values[k] += term.values[k] / start.micro_batches;
    }
  }
  double squares = 0;
  for (const Array& gradient : end.gradients)
    for (double value : gradient.values) squares += value * value;
  const double scale =
      training.squares.valid() ? clip_scale(training.options.clip_norm, squares) : 1;
  for (size_t i = first_update; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    const bool master = op.inputs.size() > 2 && op.inputs[2].valid();
    Array weight = start.values[op.inputs[master ? 2 : 0].index()];
    std::vector<std::vector<double>> moments;
    for (size_t k = 3; k < op.inputs.size(); ++k)
      if (op.inputs[k].valid()) moments.push_back(start.values[op.inputs[k].index()].values);
    std::vector<double> gradient = end.gradients[i - first_update].values;
    for (double& value : gradient) value *= scale;
    reference_update(std::get<UpdateAttrs>(op.attrs).optimizer, start.hyperparameters, start.step,
                     weight.values, gradient, moments);
    end.weights.push_back(weight);
    std::vector<Array>& states = end.states.emplace_back();
    if (master) states.push_back(weight);
    for (auto& moment : moments) states.emplace_back(weight.shape, std::move(moment));
  }
  return end;
}

}  // namespace windlass
