#include "windlass/search/exact/improve.h"

#include <algorithm>

namespace windlass {
namespace {

class LocalSearch {
 public:
  LocalSearch(const CostNetwork& network, std::vector<int32_t>& choice)
      : network_(network), choice_(choice), edges_of_(network.size()) {
    for (size_t e = 0; e < network.edges.size(); ++e) {
      edges_of_[static_cast<size_t>(network.edges[e].a)].push_back(e);
      edges_of_[static_cast<size_t>(network.edges[e].b)].push_back(e);
    }
  }

  bool improve_variable(size_t v) {
    const std::vector<double> costs = costs_of(v, network_.edges.size());
    const auto best = std::ranges::min_element(costs);
    if (*best >= costs[static_cast<size_t>(choice_[v])]) return false;
    choice_[v] = static_cast<int32_t>(best - costs.begin());
    return true;
  }

  bool improve_pair(size_t e) {
    const CostNetwork::Edge& edge = network_.edges[e];
    const auto a = static_cast<size_t>(edge.a), b = static_cast<size_t>(edge.b);
    const std::vector<double> costs_a = costs_of(a, e), costs_b = costs_of(b, e);
    const std::vector<double>& pair = network_.tables[edge.table];
    const size_t columns = costs_b.size();
    double best = costs_a[static_cast<size_t>(choice_[a])] +
                  costs_b[static_cast<size_t>(choice_[b])] +
                  pair[static_cast<size_t>(choice_[a]) * columns + static_cast<size_t>(choice_[b])];
    bool improved = false;
    for (size_t i = 0; i < costs_a.size(); ++i)
      for (size_t j = 0; j < columns; ++j) {
        const double cost = costs_a[i] + costs_b[j] + pair[i * columns + j];
        if (cost >= best) continue;
        best = cost;
        choice_[a] = static_cast<int32_t>(i);
        choice_[b] = static_cast<int32_t>(j);
        improved = true;
      }
    return improved;
  }

 private:
  // Costs of all options of v, its neighbours as chosen, without edge `but`.
  std::vector<double> costs_of(size_t v, size_t but) const {
    std::vector<double> costs = network_.tables[network_.unary[v]];
    for (size_t e : edges_of_[v]) {
      if (e == but) continue;
      const CostNetwork::Edge& edge = network_.edges[e];
      const std::vector<double>& pair = network_.tables[edge.table];
      const auto columns = static_cast<size_t>(network_.options[static_cast<size_t>(edge.b)]);
      const bool row = static_cast<size_t>(edge.a) == v;
      const auto other = static_cast<size_t>(choice_[static_cast<size_t>(row ? edge.b : edge.a)]);
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i] += row ? pair[i * columns + other] : pair[other * columns + i];
    }
    return costs;
  }

  const CostNetwork& network_;
  std::vector<int32_t>& choice_;
  std::vector<std::vector<size_t>> edges_of_;
};

}  // namespace

void improve(const CostNetwork& network, std::vector<int32_t>& choice,
             std::chrono::steady_clock::time_point deadline) {
  LocalSearch search(network, choice);
  for (bool improved = true; improved;) {
    improved = false;
    for (size_t v = 0; v < network.size(); ++v) improved = search.improve_variable(v) || improved;
    if (improved) continue;
    for (size_t e = 0; e < network.edges.size(); ++e) {
      if (std::chrono::steady_clock::now() > deadline) return;
      improved = search.improve_pair(e) || improved;
    }
  }
}

}  // namespace windlass
