// Networks around one op, and every way to split the op. For tests.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/graph/reference/op_networks.h"
#include "windlass/plan/cases.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::cases {

// All ways to cut loops of an op over the members, copies among them.
inline std::vector<Sharding> legal_shardings(const Op& op, const LoopNest& nest, int32_t members) {
  std::vector<Sharding> result;
  const auto add = [&](Sharding sharding) {
    try {
      check_sharding(op, nest, sharding, static_cast<size_t>(members));
    } catch (const Error&) {
      return;
    }
    result.push_back(std::move(sharding));
  };
  const auto loops = static_cast<int32_t>(nest.loops.size());
  const std::vector<int32_t> all = {1, 3, 1, 2};
  const std::vector<int32_t> sizes(all.begin(), all.begin() + members);
  for (int32_t a = -1; a < loops; ++a) {
    add({{{a, members}}});
    if (a >= 0) add({{{a, members, 1, sizes}}});
    if (members == 4)
      for (int32_t b = -1; b < loops; ++b) {
        add({{{a, 2}, {b, 2}}});
        if (a >= 0) add({{{a, 2, 1, {2, 1}}, {b, 2}}});
        if (b >= 0) add({{{a, 2}, {b, 2, 1, {1, 2}}}});
      }
  }
  return result;
}

inline StepStart start_of(const TrainingGraph& training, const reference::OpNetwork& network) {
  const Graph& graph = training.graph;
  const std::map<std::string, Array> by_name(network.values.begin(), network.values.end());
  StepStart start;
  start.values.resize(graph.tensors.size());
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.role == TensorRole::Weight && by_name.contains(tensor.name))
      start.values[t] = by_name.at(tensor.name);
  }
  start.data = [&graph, by_name](TensorId id, int32_t) { return by_name.at(graph[id].name); };
  start.random = [](OpId op, int32_t) { return RandomState{5, op.index()}; };
  return start;
}

// Calls visit(training, start, machine, strategy, what) for the op of the case under every sharding
// over 2, 3 and 4 members; all else is copied.
template <class Visit>
void for_every_sharding(const reference::OpCase& c, Visit&& visit,
                        const reference::OpNetworkOptions& options = {}) {
  const reference::OpNetwork network = network_around(c, options);
  if (parameter_count(network.graph) == 0) return;
  const TrainingGraph training = differentiate(network.graph, {.optimizer = OptimizerKind::Sgd});
  const StepStart start = start_of(training, network);
  const auto op = static_cast<size_t>(std::ranges::find(training.graph.ops, "op", &Op::name) -
                                      training.graph.ops.begin());
  ensure(op < training.forward_ops, "the op is not in its network");
  const LoopNest nest = loops_of(training.graph, training.graph.ops[op]);
  for (int32_t members = 2; members <= 4; ++members) {
    const Machine machine = cases::machine(members);
    for (const Sharding& sharding : legal_shardings(training.graph.ops[op], nest, members)) {
      Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
      for (int32_t d = 1; d < members; ++d)
        strategy.groups[0].push_back(DeviceId(static_cast<size_t>(d)));
      strategy.shardings = {{{{-1, members}}}, sharding};
      strategy.ops[op] = 1;
      visit(training, start, machine, strategy, format_sharding(sharding, nest));
    }
  }
}

}  // namespace windlass::cases
