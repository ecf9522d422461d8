#include "windlass/search/exact/elimination_order.h"

#include <algorithm>

namespace windlass {
namespace {

using Neighbours = std::vector<int32_t>;  // ascending

double cells_of(const CostNetwork& network, int32_t variable, const Neighbours& neighbours) {
  double cells = network.options[static_cast<size_t>(variable)];
  for (int32_t n : neighbours) cells *= network.options[static_cast<size_t>(n)];
  return cells;
}

double missing_edges(const std::vector<Neighbours>& all, const Neighbours& neighbours) {
  double missing = 0;
  for (size_t i = 0; i < neighbours.size(); ++i)
    for (size_t j = i + 1; j < neighbours.size(); ++j)
      missing += std::ranges::binary_search(all[static_cast<size_t>(neighbours[i])], neighbours[j])
                     ? 0
                     : 1;
  return missing;
}

}  // namespace

EliminationOrder order_by(const CostNetwork& network, OrderRule rule) {
  const size_t size = network.size();
  std::vector<Neighbours> neighbours(size);
  for (const CostNetwork::Edge& edge : network.edges) {
    neighbours[static_cast<size_t>(edge.a)].push_back(edge.b);
    neighbours[static_cast<size_t>(edge.b)].push_back(edge.a);
  }
  for (Neighbours& list : neighbours) std::ranges::sort(list);
  const auto score_of = [&](size_t v) -> double {
    switch (rule) {
      case OrderRule::Degree: return static_cast<double>(neighbours[v].size());
      case OrderRule::Fill: return missing_edges(neighbours, neighbours[v]);
      case OrderRule::Cells: break;
    }
    return cells_of(network, static_cast<int32_t>(v), neighbours[v]);
  };
  std::vector<double> score(size);
  for (size_t v = 0; v < size; ++v) score[v] = score_of(v);
  std::vector<bool> gone(size, false);
  EliminationOrder order;
  for (size_t step = 0; step < size; ++step) {
    size_t next = size;
    for (size_t v = 0; v < size; ++v)
      if (!gone[v] && (next == size || score[v] < score[next])) next = v;
    gone[next] = true;
    const Neighbours going = std::move(neighbours[next]);
    order.variables.push_back(static_cast<int32_t>(next));
    const double cells = cells_of(network, static_cast<int32_t>(next), going);
    order.largest = std::max(order.largest, cells);
    order.total += cells;
    order.width = std::max(order.width, going.size());
    for (int32_t n : going) {
      const Neighbours& old = neighbours[static_cast<size_t>(n)];
      Neighbours merged;
      std::ranges::set_union(old, going, std::back_inserter(merged));
      std::erase_if(
          merged, [&](int32_t other) { return other == n || static_cast<size_t>(other) == next; });
      neighbours[static_cast<size_t>(n)] = std::move(merged);
    }
    for (int32_t n : going) score[static_cast<size_t>(n)] = score_of(static_cast<size_t>(n));
    // Edges between neighbours of `next` also change what is missing around their own neighbours.
    if (rule == OrderRule::Fill)
      for (int32_t n : going)
        for (int32_t around : neighbours[static_cast<size_t>(n)])
          score[static_cast<size_t>(around)] = score_of(static_cast<size_t>(around));
  }
  return order;
}

EliminationOrder best_order(const CostNetwork& network) {
  EliminationOrder best = order_by(network, OrderRule::Cells);
  for (OrderRule rule : {OrderRule::Degree, OrderRule::Fill}) {
    EliminationOrder other = order_by(network, rule);
    if (other.total < best.total) best = std::move(other);
  }
  return best;
}

}  // namespace windlass
