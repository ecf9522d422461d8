#include "windlass/task/recompute.h"

#include <algorithm>

namespace windlass {
namespace {

class Recomputation {
 public:
  Recomputation(const TrainingGraph& training, const Strategy& strategy,
                const std::vector<int32_t>& stages, const std::vector<TensorId>& roots)
      : training_(training), stages_(stages) {
    // Saved tensors by storage; whoever is not saved is not there in the backward pass.
    kept_.assign(training.graph.tensors.size(), false);
    std::vector<bool> kept_root(training.graph.tensors.size(), false);
    for (size_t i = 0; i < training.saved.size(); ++i)
      if (strategy.saved[i] != MemoryAction::Recompute)
        kept_root[training.saved[i].tensor.index()] = true;
    for (size_t t = 0; t < kept_.size(); ++t) kept_[t] = kept_root[roots[t].index()];
    recomputed_.assign(training.forward_ops, false);
  }

  RecomputePlan run() {
    RecomputePlan plan;
    const Graph& graph = training_.graph;
    plan.before.resize(graph.ops.size());
    for (size_t i = training_.forward_ops; i < training_.forward_ops + training_.backward_ops;
         ++i) {
      const Op& op = graph.ops[i];
      if (!op.forward.valid()) continue;
      std::vector<OpId> again;
      const size_t gradients = op.inputs.size() - op.saved.size();
      for (size_t k = gradients; k < op.inputs.size(); ++k)
        if (op.inputs[k].valid()) need(op.inputs[k], stages_[i], again);
      std::ranges::sort(again);
      plan.before[i] = std::move(again);
    }
    return plan;
  }

 private:
  bool available(TensorId id, int32_t stage) const {
    const Tensor& tensor = training_.graph[id];
    if (!tensor.producer.valid() || kept_[id.index()]) return true;
    return stages_[tensor.producer.index()] != stage;
  }

  // Iterative: chains of recomputation can be as long as the network is deep.
  void need(TensorId id, int32_t stage, std::vector<OpId>& again) {
    std::vector<TensorId> pending = {id};
    while (!pending.empty()) {
      const TensorId tensor = pending.back();
      pending.pop_back();
      if (available(tensor, stage)) continue;
      const OpId producer = training_.graph[tensor].producer;
      if (recomputed_[producer.index()]) continue;
      recomputed_[producer.index()] = true;
      again.push_back(producer);
      for (TensorId input : training_.graph[producer].inputs)
        if (input.valid()) pending.push_back(input);
    }
  }

  const TrainingGraph& training_;
  const std::vector<int32_t>& stages_;
  std::vector<bool> kept_, recomputed_;
};

}  // namespace

RecomputePlan plan_recompute(const TrainingGraph& training, const Strategy& strategy,
                             const std::vector<int32_t>& stage_of_op,
                             const std::vector<TensorId>& roots) {
  if (std::ranges::find(strategy.saved, MemoryAction::Recompute) == strategy.saved.end())
    return {std::vector<std::vector<OpId>>(training.graph.ops.size())};
  return Recomputation(training, strategy, stage_of_op, roots).run();
}

std::vector<int32_t> stages_of_training(const TrainingGraph& training, const Strategy& strategy) {
  const Graph& graph = training.graph;
  std::vector<int32_t> stages = stage_of_ops(strategy, training.forward_ops);
  stages.resize(graph.ops.size(), 0);
  for (size_t i = training.forward_ops; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.forward.valid()) {
      stages[i] = stages[op.forward.index()];
      continue;
    }
    // A later term of the backward pass lies in an earlier stage.
    int32_t stage = -1;
    for (TensorId id : op.inputs) {
      if (!id.valid() || !graph[id].producer.valid()) continue;
      const OpId producer = graph[id].producer;
      if (producer.index() >= training.forward_ops)
        stage = stage < 0 ? stages[producer.index()] : std::min(stage, stages[producer.index()]);
    }
    stages[i] = std::max(stage, 0);
  }
  return stages;
}

}  // namespace windlass
