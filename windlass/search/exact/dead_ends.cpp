#include "windlass/search/exact/dead_ends.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace windlass {
namespace {

// Sets of options by number, equal ones alike.
class OptionSets {
 public:
  int32_t add(std::vector<int32_t> set) {
    const auto [entry, fresh] = index_.try_emplace(set, static_cast<int32_t>(sets_.size()));
    if (fresh) sets_.push_back(std::move(set));
    return entry->second;
  }
  const std::vector<int32_t>& operator[](int32_t id) const {
    return sets_[static_cast<size_t>(id)];
  }

 private:
  std::vector<std::vector<int32_t>> sets_;
  std::map<std::vector<int32_t>, int32_t> index_;
};

// An edge as one of its variables sees it.
struct Side {
  int32_t table = -1;
  bool turned = false;           // the variable's options are the columns
  int32_t columns = 0;           // of the table
  int32_t own = -1, other = -1;  // sets of options left
  auto operator<=>(const Side&) const = default;
};

// Rows of the own options left by columns of the neighbour's options left.
std::vector<double> rows_of(const CostNetwork& network, const OptionSets& sets, const Side& side) {
  const std::vector<double>& table = network.tables[side.table];
  const std::vector<int32_t>& own = sets[side.own];
  const std::vector<int32_t>& other = sets[side.other];
  std::vector<double> rows;
  rows.reserve(own.size() * other.size());
  const auto columns = static_cast<size_t>(side.columns);
  for (int32_t i : own)
    for (int32_t j : other) {
      const auto row = static_cast<size_t>(side.turned ? j : i);
      const auto column = static_cast<size_t>(side.turned ? i : j);
      rows.push_back(table[row * columns + column]);
    }
  return rows;
}

double largest_difference(const double* a, const double* c, size_t count) {
  double lanes[4] = {a[0] - c[0], a[0] - c[0], a[0] - c[0], a[0] - c[0]};
  size_t j = 0;
  for (; j + 4 <= count; j += 4)
    for (size_t lane = 0; lane < 4; ++lane)
      lanes[lane] = std::max(lanes[lane], a[j + lane] - c[j + lane]);
  for (; j < count; ++j) lanes[0] = std::max(lanes[0], a[j] - c[j]);
  return std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
}

// The options of one variable and its edges, ready for the test.
class Candidates {
 public:
  Candidates(std::vector<double> unary, std::vector<std::vector<double>> edges)
      : unary_(std::move(unary)), edges_(std::move(edges)) {
    for (const std::vector<double>& edge : edges_) {
      const size_t columns = edge.size() / unary_.size();
      Summary& summary = summaries_.emplace_back();
      for (size_t i = 0; i < unary_.size(); ++i) {
        const auto row = std::span(edge).subspan(i * columns, columns);
        summary.least.push_back(std::ranges::min(row));
        summary.largest.push_back(std::ranges::max(row));
        summary.mean.push_back(std::accumulate(row.begin(), row.end(), 0.0) /
                               static_cast<double>(columns));
      }
    }
  }

  // Whether option a is never worse than option c.
  bool covers(size_t a, size_t c) const {
    // The largest difference of two rows is at least that of their least, largest and mean cells.
    double rest = 0;
    for (const Summary& s : summaries_) rest += bound(s, a, c);
    double exact = unary_[a] - unary_[c];
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (exact + rest > 0) return false;
      rest -= bound(summaries_[e], a, c);
      const size_t columns = edges_[e].size() / unary_.size();
      const double* rows = edges_[e].data();
      exact += largest_difference(rows + a * columns, rows + c * columns, columns);
    }
    return exact <= 0;
  }

 private:
  struct Summary {
    std::vector<double> least, largest, mean;  // by option
  };
  static double bound(const Summary& s, size_t a, size_t c) {
    // Means are rounded: they serve where they are clear.
    const double slack = 1e-9 * (s.mean[a] + s.mean[c]);
    return std::max(
        {s.least[a] - s.least[c], s.largest[a] - s.largest[c], s.mean[a] - s.mean[c] - slack});
  }

  std::vector<double> unary_;
  std::vector<std::vector<double>> edges_;
  std::vector<Summary> summaries_;
};

// Positions, among `count` options, that are left.
std::vector<bool> survivors(const Candidates& candidates, size_t count) {
  std::vector<bool> left(count, true);
  for (size_t c = 0; c < count; ++c)
    for (size_t a = 0; a < count; ++a) {
      if (a == c || !left[a] || !candidates.covers(a, c)) continue;
      left[c] = false;
      break;
    }
  return left;
}

}  // namespace

ReducedNetwork restrict_options(const CostNetwork& network,
                                const std::vector<std::vector<int32_t>>& left) {
  ReducedNetwork result;
  result.original = left;
  OptionSets sets;
  std::vector<int32_t> set_of;
  for (const std::vector<int32_t>& options : left) {
    result.network.options.push_back(static_cast<int32_t>(options.size()));
    set_of.push_back(sets.add(options));
  }
  std::map<Side, int32_t> made;
  const int32_t single = sets.add({0});
  for (size_t v = 0; v < network.size(); ++v) {
    const Side side = {network.unary[v], false, 1, set_of[v], single};
    const auto [entry, fresh] = made.try_emplace(side, -1);
    if (fresh) entry->second = result.network.tables.add(rows_of(network, sets, side));
    result.network.unary.push_back(entry->second);
  }
  for (const CostNetwork::Edge& edge : network.edges) {
    const Side side = {edge.table, false, network.options[static_cast<size_t>(edge.b)],
                       set_of[static_cast<size_t>(edge.a)], set_of[static_cast<size_t>(edge.b)]};
    const auto [entry, fresh] = made.try_emplace(side, -1);
    if (fresh) entry->second = result.network.tables.add(rows_of(network, sets, side));
    result.network.edges.push_back({edge.a, edge.b, entry->second});
  }
  return result;
}

ReducedNetwork remove_dead_ends(const CostNetwork& network) {
  const size_t size = network.size();
  OptionSets sets;
  std::vector<int32_t> left(size);
  for (size_t v = 0; v < size; ++v) {
    std::vector<int32_t> all(static_cast<size_t>(network.options[v]));
    std::iota(all.begin(), all.end(), 0);
    left[v] = sets.add(std::move(all));
  }
  std::vector<std::vector<size_t>> edges_of(size);
  for (size_t e = 0; e < network.edges.size(); ++e) {
    edges_of[static_cast<size_t>(network.edges[e].a)].push_back(e);
    edges_of[static_cast<size_t>(network.edges[e].b)].push_back(e);
  }
  struct Look {
    int32_t unary = -1, own = -1;
    std::vector<Side> sides;
    auto operator<=>(const Look&) const = default;
  };
  std::map<Look, int32_t> tested;  // to the set that is left
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<int32_t> next = left;
    for (size_t v = 0; v < size; ++v) {
      Look look = {network.unary[v], left[v], {}};
      for (size_t e : edges_of[v]) {
        const CostNetwork::Edge& edge = network.edges[e];
        const bool turned = static_cast<size_t>(edge.b) == v;
        const auto other = static_cast<size_t>(turned ? edge.a : edge.b);
        look.sides.push_back({edge.table, turned, network.options[static_cast<size_t>(edge.b)],
                              left[v], left[other]});
      }
      std::ranges::sort(look.sides);
      const auto [entry, fresh] = tested.try_emplace(look, -1);
      if (fresh) {
        const std::vector<int32_t>& own = sets[left[v]];
        std::vector<double> unary;
        for (int32_t i : own)
          unary.push_back(network.tables[network.unary[v]][static_cast<size_t>(i)]);
        std::vector<std::vector<double>> rows;
        for (const Side& side : look.sides) rows.push_back(rows_of(network, sets, side));
        const std::vector<bool> stays =
            survivors(Candidates(std::move(unary), std::move(rows)), own.size());
        std::vector<int32_t> remaining;
        for (size_t i = 0; i < own.size(); ++i)
          if (stays[i]) remaining.push_back(own[i]);
        entry->second = sets.add(std::move(remaining));
      }
      next[v] = entry->second;
      changed = changed || next[v] != left[v];
    }
    left = std::move(next);
  }
  std::vector<std::vector<int32_t>> options;
  for (int32_t set : left) options.push_back(sets[set]);
  return restrict_options(network, options);
}

}  // namespace windlass
