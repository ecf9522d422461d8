#include "windlass/search/exact/cost_network.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"

namespace windlass {

int32_t CostTables::add(std::vector<double> cells) {
  const uint64_t hash = hash_bytes(std::as_bytes(std::span(cells)));
  const auto [first, last] = index_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (tables_[static_cast<size_t>(known->second)] == cells) return known->second;
  const auto id = static_cast<int32_t>(tables_.size());
  index_.emplace(hash, id);
  cells_ += static_cast<int64_t>(cells.size());
  tables_.push_back(std::move(cells));
  return id;
}

void CostNetwork::add_pair(int32_t a, int32_t b, std::vector<double> cells) {
  if (a > b) {
    const auto rows = static_cast<size_t>(options[static_cast<size_t>(a)]);
    const auto columns = static_cast<size_t>(options[static_cast<size_t>(b)]);
    std::vector<double> turned(cells.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) turned[j * rows + i] = cells[i * columns + j];
    std::swap(a, b);
    cells = std::move(turned);
  }
  const auto [entry, fresh] = edge_index_.try_emplace({a, b}, edges.size());
  if (fresh) {
    edges.push_back({a, b, tables.add(std::move(cells))});
    return;
  }
  Edge& edge = edges[entry->second];
  const std::vector<double>& known = tables[edge.table];
  for (size_t i = 0; i < cells.size(); ++i) cells[i] += known[i];
  edge.table = tables.add(std::move(cells));
}

void check_network(const CostNetwork& network) {
  const auto check_cells = [&](int32_t table, int64_t cells, const std::string& what) {
    ensure(table >= 0 && static_cast<size_t>(table) < network.tables.size(), what + ": no table");
    const std::vector<double>& found = network.tables[table];
    ensure(static_cast<int64_t>(found.size()) == cells, what + ": size of the table");
    ensure(std::ranges::all_of(found,
                               [](double cost) {
                                 return std::isfinite(cost) && cost >= 0 &&
                                        cost == std::floor(cost);
                               }),
           what + ": a cost is negative, not whole or not finite");
  };
  ensure(network.unary.size() == network.size(), "cost network: one unary table a variable");
  for (size_t v = 0; v < network.size(); ++v) {
    ensure(network.options[v] > 0, fmt::format("cost network: variable {} has no options", v));
    check_cells(network.unary[v], network.options[v], fmt::format("variable {}", v));
  }
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const CostNetwork::Edge& edge : network.edges) {
    const std::string what = fmt::format("edge {}-{}", edge.a, edge.b);
    ensure(0 <= edge.a && edge.a < edge.b && static_cast<size_t>(edge.b) < network.size(),
           what + ": names no two variables in order");
    check_cells(edge.table,
                int64_t{network.options[static_cast<size_t>(edge.a)]} *
                    network.options[static_cast<size_t>(edge.b)],
                what);
    pairs.emplace_back(edge.a, edge.b);
  }
  std::ranges::sort(pairs);
  ensure(std::ranges::adjacent_find(pairs) == pairs.end(), "cost network: two edges of a pair");
}

double cost_of(const CostNetwork& network, std::span<const int32_t> choice) {
  double cost = 0;
  for (size_t v = 0; v < network.size(); ++v)
    cost += network.tables[network.unary[v]][static_cast<size_t>(choice[v])];
  for (const CostNetwork::Edge& edge : network.edges) {
    const auto a = static_cast<size_t>(edge.a), b = static_cast<size_t>(edge.b);
    cost += network.tables[edge.table][static_cast<size_t>(choice[a]) *
                                           static_cast<size_t>(network.options[b]) +
                                       static_cast<size_t>(choice[b])];
  }
  return cost;
}

std::string to_wcsp(const CostNetwork& network, const std::string& name) {
  // The format has no infinity but the upper bound: one more than the sum of all largest costs, or
  // of what any choice costs where that is too much.
  double above = 1;
  const auto largest = [&](int32_t table) { return std::ranges::max(network.tables[table]); };
  for (int32_t table : network.unary) above += largest(table);
  for (const CostNetwork::Edge& edge : network.edges) above += largest(edge.table);
  constexpr double kLargest = 4e18;
  if (above > kLargest)
    throw Error(
        ErrorKind::Unsupported,
        fmt::format("{}: costs add up to {:.3g}, more than a wcsp file can hold", name, above));
  std::string text;
  const int32_t domain = network.size() == 0 ? 0 : std::ranges::max(network.options);
  std::string plain;
  for (char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  text += fmt::format("{} {} {} {} {}\n", plain, network.size(), domain,
                      network.size() + network.edges.size(), static_cast<int64_t>(above));
  for (size_t v = 0; v < network.size(); ++v)
    text += fmt::format("{}{}", network.options[v], v + 1 == network.size() ? "\n" : " ");
  // Default cost 0 and the tuples that cost more.
  for (size_t v = 0; v < network.size(); ++v) {
    const std::vector<double>& cells = network.tables[network.unary[v]];
    const auto tuples = std::ranges::count_if(cells, [](double cost) { return cost > 0; });
    text += fmt::format("1 {} 0 {}\n", v, tuples);
    for (size_t i = 0; i < cells.size(); ++i)
      if (cells[i] > 0) text += fmt::format("{} {}\n", i, static_cast<int64_t>(cells[i]));
  }
  for (const CostNetwork::Edge& edge : network.edges) {
    const std::vector<double>& cells = network.tables[edge.table];
    const auto columns = static_cast<size_t>(network.options[static_cast<size_t>(edge.b)]);
    const auto tuples = std::ranges::count_if(cells, [](double cost) { return cost > 0; });
    text += fmt::format("2 {} {} 0 {}\n", edge.a, edge.b, tuples);
    for (size_t i = 0; i < cells.size(); ++i)
      if (cells[i] > 0)
        text += fmt::format("{} {} {}\n", i / columns, i % columns, static_cast<int64_t>(cells[i]));
  }
  return text;
}

}  // namespace windlass
