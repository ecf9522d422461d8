#include "windlass/search/peers/pase/pase_problem.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr size_t kMostConfigurations = 1000000;

// Dimensions that are never split.
std::vector<bool> whole_dimensions(const Layer& layer) {
  std::vector<bool> whole(layer.space.size(), false);
  switch (layer.kind) {
    case LayerKind::Conv: whole[2] = whole[3] = true; break;  // PaSE exchanges no halos
    case LayerKind::Lstm: whole[1] = true; break;
    case LayerKind::Concat:
    case LayerKind::Split:
    case LayerKind::Stack:
    case LayerKind::Unstack: whole[static_cast<size_t>(layer.axes[0])] = true; break;
    default: break;
  }
  return whole;
}

// After flattening, a piece must be one run: leading dimensions split to single elements, then one
// split in part, the rest whole.
bool contiguous(const Layer& layer, const Configuration& parts) {
  size_t i = 0;
  while (i < parts.size() && parts[i] == layer.space[i]) ++i;
  for (++i; i < parts.size(); ++i)
    if (parts[i] != 1) return false;
  return true;
}

// Tuples by number, equal ones alike.
struct Tuples {
  std::vector<Configuration> distinct;
  std::vector<size_t> of;  // by configuration
};
template <typename PartsOf>
Tuples tuples_of(const std::vector<Configuration>& configurations, PartsOf parts_of) {
  Tuples tuples;
  std::map<Configuration, size_t> index;
  for (const Configuration& configuration : configurations) {
    Configuration parts = parts_of(configuration);
    const auto [entry, fresh] = index.try_emplace(parts, tuples.distinct.size());
    if (fresh) tuples.distinct.push_back(std::move(parts));
    tuples.of.push_back(entry->second);
  }
  return tuples;
}

std::vector<double> tensor_costs(const Extents& shape, const Tuples& from, const Tuples& to,
                                 double flops_per_word, double units_per_flop) {
  const size_t rows = from.distinct.size(), columns = to.distinct.size();
  std::vector<double> distinct(rows * columns);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      distinct[i * columns + j] = std::nearbyint(
          tensor_cost(shape, from.distinct[i], to.distinct[j], flops_per_word) * units_per_flop);
  std::vector<double> cells;
  cells.reserve(from.of.size() * to.of.size());
  for (size_t i : from.of)
    for (size_t j : to.of) cells.push_back(distinct[i * columns + j]);
  return cells;
}

// Edges that count: of each pair of vertices the last.
std::vector<LayerEdge> counted_edges(const LayerGraph& graph) {
  std::map<std::pair<size_t, size_t>, LayerEdge> last;
  for (const LayerEdge& edge : graph.edges) last[{edge.from, edge.to}] = edge;
  std::vector<LayerEdge> edges;
  for (const auto& [pair, edge] : last) edges.push_back(edge);
  return edges;
}

}  // namespace

std::vector<Configuration> configurations_of(const Layer& layer, int64_t cutoff, int64_t devices) {
  const size_t rank = layer.space.size();
  const std::vector<bool> whole = whole_dimensions(layer);
  std::vector<std::vector<int64_t>> candidates(rank, {1});
  for (size_t i = 0; i < rank; ++i)
    for (int64_t parts = 2; parts <= std::min(devices, layer.space[i]) && !whole[i]; ++parts)
      if (layer.space[i] % parts == 0 && layer.space[i] / parts >= cutoff)
        candidates[i].push_back(parts);
  const bool flat = layer.kind == LayerKind::Ravel || layer.kind == LayerKind::Unravel;
  std::vector<Configuration> result;
  Configuration parts(rank, 1);
  const auto extend = [&](auto&& self, size_t i, int64_t left) -> void {
    if (i == rank) {
      if (flat && !contiguous(layer, parts)) return;
      if (result.size() == kMostConfigurations)
        fail_input("a layer of type {} has more than {} configurations on {} devices",
                   layer_kind_name(layer.kind), kMostConfigurations, devices);
      result.push_back(parts);
      return;
    }
    for (int64_t count : candidates[i]) {
      if (count > left) break;
      parts[i] = count;
      self(self, i + 1, left / count);
    }
    parts[i] = 1;
  };
  extend(extend, 0, devices);
  return result;
}

PaseProblem make_pase_problem(const LayerGraph& graph, const PaseMachine& machine) {
  const double r = machine.flops_per_word();
  PaseProblem problem;
  std::map<Layer, int32_t> kinds;
  std::vector<const Layer*> kind_layers;
  for (const Layer& layer : graph.layers) {
    const auto [entry, fresh] = kinds.try_emplace(layer, static_cast<int32_t>(kinds.size()));
    problem.kind_of.push_back(entry->second);
    if (fresh) kind_layers.push_back(&layer);
  }
  // Costs of each kind; and from that of nobody splitting anything, units in which sums are exact.
  std::vector<std::vector<double>> costs;
  for (const Layer* layer : kind_layers) {
    problem.configurations.push_back(configurations_of(*layer, graph.cutoff, machine.devices));
    std::vector<double>& of_kind = costs.emplace_back();
    for (const Configuration& parts : problem.configurations.back())
      of_kind.push_back(layer_cost(*layer, parts, r));
  }
  double unsplit = 0;
  for (int32_t kind : problem.kind_of) unsplit += costs[static_cast<size_t>(kind)][0];
  constexpr double kExact = 0x1p52, kFinest = 0x1p-10;
  problem.unit = kFinest;
  while (unsplit / problem.unit > kExact) problem.unit *= 2;
  const double units_per_flop = 1 / problem.unit;

  std::vector<int32_t> tables;
  for (std::vector<double>& of_kind : costs) {
    for (double& cost : of_kind) cost = std::nearbyint(cost * units_per_flop);
    tables.push_back(problem.network.tables.add(std::move(of_kind)));
  }
  for (int32_t kind : problem.kind_of) {
    problem.network.options.push_back(
        static_cast<int32_t>(problem.configurations[static_cast<size_t>(kind)].size()));
    problem.network.unary.push_back(tables[static_cast<size_t>(kind)]);
  }
  std::map<std::pair<int32_t, size_t>, Tuples> outputs, inputs;
  std::map<std::tuple<int32_t, size_t, int32_t, size_t>, int32_t> edge_tables;
  for (const LayerEdge& edge : counted_edges(graph)) {
    const int32_t from = problem.kind_of[edge.from], to = problem.kind_of[edge.to];
    const auto [known, fresh] = edge_tables.try_emplace({from, edge.output, to, edge.input}, -1);
    if (fresh) {
      const auto [out, new_out] = outputs.try_emplace({from, edge.output});
      if (new_out)
        out->second = tuples_of(problem.of(edge.from), [&](const Configuration& parts) {
          return parts_of_output(graph.layers[edge.from], parts, edge.output);
        });
      const auto [in, new_in] = inputs.try_emplace({to, edge.input});
      if (new_in)
        in->second = tuples_of(problem.of(edge.to), [&](const Configuration& parts) {
          return parts_of_input(graph.layers[edge.to], parts, edge.input);
        });
      known->second =
          problem.network.tables.add(tensor_costs(graph.layers[edge.from].outputs[edge.output],
                                                  out->second, in->second, r, units_per_flop));
    }
    problem.network.edges.push_back(
        {static_cast<int32_t>(edge.from), static_cast<int32_t>(edge.to), known->second});
  }
  return problem;
}

double pase_cost(const LayerGraph& graph, const PaseMachine& machine, const PaseProblem& problem,
                 const std::vector<int32_t>& choice) {
  const double r = machine.flops_per_word();
  const auto parts = [&](size_t v) -> const Configuration& {
    return problem.of(v)[static_cast<size_t>(choice[v])];
  };
  double cost = 0;
  for (size_t v = 0; v < graph.layers.size(); ++v) cost += layer_cost(graph.layers[v], parts(v), r);
  for (const LayerEdge& edge : counted_edges(graph)) {
    const Layer &from = graph.layers[edge.from], &to = graph.layers[edge.to];
    cost +=
        tensor_cost(from.outputs[edge.output], parts_of_output(from, parts(edge.from), edge.output),
                    parts_of_input(to, parts(edge.to), edge.input), r);
  }
  return cost;
}

}  // namespace windlass
