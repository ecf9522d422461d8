#include "windlass/search/exact/relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "windlass/search/exact/join.h"

namespace windlass {
namespace {

using Costs = std::vector<double>;  // by option

class MessagePassing {
 public:
  explicit MessagePassing(const CostNetwork& network)
      : network_(network),
        later_(network.size()),
        earlier_(network.size()),
        shares_(network.size()),
        rests_(network.size()) {
    std::map<std::pair<int32_t, int32_t>, size_t> turned;  // by table and its columns
    for (size_t e = 0; e < network.edges.size(); ++e) {
      const CostNetwork::Edge& edge = network.edges[e];
      later_[index(edge.a)].push_back(e);
      earlier_[index(edge.b)].push_back(e);
      to_later_.emplace_back(options(edge.b), 0.0);
      to_earlier_.emplace_back(options(edge.a), 0.0);
      const auto [known, fresh] =
          turned.try_emplace({edge.table, network.options[index(edge.b)]}, turned_.size());
      if (fresh) turned_.push_back(turn(edge));
      turned_of_.push_back(known->second);
      cells_ += static_cast<double>(options(edge.a) * options(edge.b));
    }
  }

  double cells() const { return cells_; }  // of one pass

  // From the first to the last; returns the bound.
  double forward() {
    double bound = 0;
    for (size_t v = 0; v < network_.size(); ++v) {
      bound += share_out(v, later_[v].size());
      for (size_t e : later_[v]) {
        const CostNetwork::Edge& edge = network_.edges[e];
        hand_on(network_.tables[edge.table], minus(shares_[v], to_earlier_[e]), to_later_[e]);
      }
    }
    return bound;
  }

  // From the last to the first.
  double backward() {
    double bound = 0;
    for (size_t v = network_.size(); v-- > 0;) {
      bound += share_out(v, earlier_[v].size());
      for (size_t e : earlier_[v])
        hand_on(turned_[turned_of_[e]], minus(shares_[v], to_later_[e]), to_earlier_[e]);
    }
    return bound;
  }

  // After a pass forward: each variable takes what is best with those before it as chosen, and
  // what later ones say.
  std::vector<int32_t> choice() const {
    std::vector<int32_t> chosen(network_.size(), 0);
    for (size_t v = 0; v < network_.size(); ++v) {
      Costs total = network_.tables[network_.unary[v]];
      for (size_t e : earlier_[v]) {
        const CostNetwork::Edge& edge = network_.edges[e];
        const Costs& pair = network_.tables[edge.table];
        const size_t row = index(chosen[index(edge.a)]) * total.size();
        for (size_t i = 0; i < total.size(); ++i) total[i] += pair[row + i];
      }
      for (size_t e : later_[v])
        for (size_t i = 0; i < total.size(); ++i) total[i] += to_earlier_[e][i];
      chosen[v] = static_cast<int32_t>(std::ranges::min_element(total) - total.begin());
    }
    return chosen;
  }

  // After a pass forward.
  CostNetwork rest() const {
    CostNetwork result;
    result.options = network_.options;
    for (const Costs& kept : rests_) {
      Costs cells = kept;
      const double least = std::ranges::min(cells);
      for (double& cell : cells) cell -= least;
      result.unary.push_back(result.tables.add(std::move(cells)));
    }
    for (size_t e = 0; e < network_.edges.size(); ++e) {
      const CostNetwork::Edge& edge = network_.edges[e];
      Costs cells = network_.tables[edge.table];
      const Costs own = minus(shares_[index(edge.a)], to_earlier_[e]);
      const Costs& handed = to_later_[e];
      for (size_t i = 0; i < own.size(); ++i)
        for (size_t j = 0; j < handed.size(); ++j)
          cells[i * handed.size() + j] += own[i] - handed[j];
      result.add_pair(edge.a, edge.b, std::move(cells));
    }
    return result;
  }

 private:
  static size_t index(int32_t v) { return static_cast<size_t>(v); }
  size_t options(int32_t v) const { return index(network_.options[index(v)]); }

  Costs turn(const CostNetwork::Edge& edge) const {
    const Costs& cells = network_.tables[edge.table];
    const size_t rows = options(edge.a), columns = options(edge.b);
    Costs result(cells.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) result[j * rows + i] = cells[i * columns + j];
    return result;
  }

  static Costs minus(Costs a, const Costs& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return a;
  }

  // What a variable costs with all that was handed to it, over so many edges; the least of what it
  // keeps. The shares are those of the denser side, so that a pass does not undo the one before.
  double share_out(size_t v, size_t edges) {
    Costs& rest = rests_[v] = network_.tables[network_.unary[v]];
    for (size_t e : earlier_[v])
      for (size_t i = 0; i < rest.size(); ++i) rest[i] += to_later_[e][i];
    for (size_t e : later_[v])
      for (size_t i = 0; i < rest.size(); ++i) rest[i] += to_earlier_[e][i];
    const auto parts =
        static_cast<double>(std::max<size_t>(1, std::max(earlier_[v].size(), later_[v].size())));
    Costs& share = shares_[v];
    share.resize(rest.size());
    for (size_t i = 0; i < rest.size(); ++i) {
      share[i] = std::floor(rest[i] / parts);
      rest[i] -= share[i] * static_cast<double>(edges);
    }
    return std::ranges::min(rest);
  }

  // For each column the least sum of a row's own costs and its cell.
  static void hand_on(const Costs& cells, const Costs& own, Costs& least) {
    std::ranges::fill(least, std::numeric_limits<double>::infinity());
    const auto columns = static_cast<int64_t>(least.size());
    for (size_t i = 0; i < own.size(); ++i)
      lower_row(least.data(), cells.data() + static_cast<int64_t>(i) * columns, own[i], columns);
  }

  const CostNetwork& network_;
  std::vector<std::vector<size_t>> later_, earlier_;  // by variable: edges to such ones
  std::vector<Costs> shares_, rests_;                 // by variable, of the last pass
  std::vector<Costs> to_later_, to_earlier_;          // by edge: what it has handed on
  std::vector<Costs> turned_;                         // tables with columns as rows
  std::vector<size_t> turned_of_;                     // by edge
  double cells_ = 0;
};

}  // namespace

double relaxation_unit(const CostNetwork& network) {
  constexpr double kExact = 0x1.0p52;
  double most = 0;
  for (int32_t table : network.unary) most += std::ranges::max(network.tables[table]);
  std::map<int32_t, double> largest;
  for (const CostNetwork::Edge& edge : network.edges) {
    const auto [known, fresh] = largest.try_emplace(edge.table, 0);
    if (fresh) known->second = std::ranges::max(network.tables[edge.table]);
    most += known->second;
  }
  double unit = 1;
  while (most / unit >= kExact) unit *= 2;
  return unit;
}

CostNetwork in_units(const CostNetwork& network, double unit) {
  CostNetwork result;
  result.options = network.options;
  std::map<int32_t, int32_t> made;
  const auto table = [&](int32_t id) {
    const auto [entry, fresh] = made.try_emplace(id, -1);
    if (fresh) {
      Costs cells = network.tables[id];
      for (double& cell : cells) cell = std::floor(cell / unit);
      entry->second = result.tables.add(std::move(cells));
    }
    return entry->second;
  };
  for (int32_t id : network.unary) result.unary.push_back(table(id));
  for (const CostNetwork::Edge& edge : network.edges)
    result.edges.push_back({edge.a, edge.b, table(edge.table)});
  return result;
}

Relaxation relax(const CostNetwork& network, const RelaxationOptions& options) {
  // Sweeps that together raise the bound by less than this share are the last ones.
  constexpr int kPatience = 10;
  constexpr double kLeastGain = 2e-5;
  Relaxation result;
  result.cost = std::numeric_limits<double>::infinity();
  MessagePassing passing(network);
  double before = 0;
  for (int sweep = 0;; ++sweep) {
    result.bound = passing.forward();
    result.cells += passing.cells();
    std::vector<int32_t> choice = passing.choice();
    if (const double cost = cost_of(network, choice); cost < result.cost) {
      result.cost = cost;
      result.choice = std::move(choice);
    }
    if (result.cost <= result.bound || sweep >= options.sweeps) break;
    if (sweep % kPatience == 0) {
      if (sweep > 0 && result.bound - before <= kLeastGain * result.bound) break;
      before = result.bound;
    }
    if (result.cells + 2 * passing.cells() > options.most_cells) break;
    if (std::chrono::steady_clock::now() > options.deadline) {
      result.out_of_time = true;
      break;
    }
    passing.backward();
    result.cells += passing.cells();
  }
  result.rest = passing.rest();
  return result;
}

std::vector<std::vector<int32_t>> options_below(const CostNetwork& rest, double most,
                                                const std::vector<int32_t>& choice) {
  // No term is below zero, so that an option costs no less than the least of each of its terms.
  std::vector<Costs> least;
  for (int32_t table : rest.unary) least.push_back(rest.tables[table]);
  for (const CostNetwork::Edge& edge : rest.edges) {
    Costs& a = least[static_cast<size_t>(edge.a)];
    Costs& b = least[static_cast<size_t>(edge.b)];
    const Costs& cells = rest.tables[edge.table];
    Costs columns(b.size(), std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < a.size(); ++i) {
      double row = std::numeric_limits<double>::infinity();
      for (size_t j = 0; j < b.size(); ++j) {
        const double cell = cells[i * b.size() + j];
        row = std::min(row, cell);
        columns[j] = std::min(columns[j], cell);
      }
      a[i] += row;
    }
    for (size_t j = 0; j < b.size(); ++j) b[j] += columns[j];
  }
  std::vector<std::vector<int32_t>> left(rest.size());
  for (size_t v = 0; v < rest.size(); ++v)
    for (size_t i = 0; i < least[v].size(); ++i)
      if (least[v][i] < most || static_cast<int32_t>(i) == choice[v])
        left[v].push_back(static_cast<int32_t>(i));
  return left;
}

}  // namespace windlass
