#include "windlass/search/exact/sharding/sharding_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "windlass/search/exact/elimination_order.h"
#include "windlass/task/facts.h"

namespace windlass {

ParetoNetwork ShardingProblem::network(double overlap) const {
  ParetoNetwork network;
  network.kind_of = kind_of;
  network.edges = edges;
  network.tables = tables;
  for (const auto& kind : choices) {
    ParetoNetwork::Options& options = network.kinds.emplace_back();
    for (const std::vector<LocalChoice>& locals : kind) {
      auto& variants = options.emplace_back();
      for (const LocalChoice& local : locals)
        variants.push_back(
            {std::nearbyint(local.cost.time - overlap * local.hideable), local.cost.bytes});
    }
  }
  return network;
}

double ShardingProblem::least_work() const {
  double sum = 0;
  for (int32_t kind : kind_of) sum += work[static_cast<size_t>(kind)];
  return sum;
}

double cells_with_recompute(const TrainingGraph& training, const ShardingProblem& plain) {
  const TrainingFacts facts(training);
  const FateRules rules(training, facts, plain.devices.size());
  if (!rules.possible()) return std::numeric_limits<double>::infinity();
  CostNetwork shape;
  for (size_t i = 0; i < training.forward_ops; ++i)
    shape.options.push_back(static_cast<int32_t>(plain.of(i).size() * rules.of(i).size()));
  for (const ParetoNetwork::Edge& edge : plain.edges)
    shape.edges.push_back({std::min(edge.a, edge.b), std::max(edge.a, edge.b), -1});
  return best_order(shape).total;
}

Strategy ShardingProblem::strategy(const TrainingGraph& training,
                                   const ParetoChoice& choice) const {
  const auto local_of = [&](size_t op) -> const LocalChoice& {
    return choices_of(
        op)[static_cast<size_t>(choice.options[op])][static_cast<size_t>(choice.variants[op])];
  };
  const TrainingFacts facts(training);
  Strategy strategy;
  strategy.name = "exact";
  strategy.groups = {devices};
  strategy.stages = {{.first = 0, .last = training.forward_ops}};
  strategy.saved.assign(training.saved.size(), MemoryAction::Keep);
  strategy.weights.assign(facts.updates.size(), Residency{});
  std::map<Sharding, int32_t> index;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Sharding& sharding = of(i)[static_cast<size_t>(choice.options[i])];
    const auto [entry, fresh] =
        index.try_emplace(sharding, static_cast<int32_t>(strategy.shardings.size()));
    if (fresh) strategy.shardings.push_back(sharding);
    strategy.ops.push_back(entry->second);
  }
  for (size_t s = 0; s < training.saved.size(); ++s)
    if (const OpId producer = training.saved[s].producer; producer.valid())
      strategy.saved[s] = local_of(producer.index()).saved;
  for (size_t u = 0; u < facts.updates.size(); ++u)
    strategy.weights[u] = local_of(facts.first_use[u].first.index()).residency;
  return strategy;
}

}  // namespace windlass
