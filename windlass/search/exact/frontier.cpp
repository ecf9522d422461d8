#include "windlass/search/exact/frontier.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/search/exact/elimination_order.h"

namespace windlass {
namespace {

// An entry of a list: its cost and how it came about, as a node of a pool.
struct Entry {
  double time = 0, bytes = 0;
  int32_t node = -1;
};
using List = std::vector<Entry>;

struct OverBudget {};

class ParetoElimination {
 public:
  ParetoElimination(const ParetoNetwork& network, const FrontierOptions& options)
      : network_(network), resolution_(std::max(1.0, options.resolution)), left_(options.budget) {}

  std::vector<ParetoChoice> run() {
    const size_t size = network_.size();
    const CostNetwork shape = weighted(network_, {});
    const EliminationOrder order = best_order(shape);
    position_.resize(size);
    for (size_t i = 0; i < size; ++i)
      position_[static_cast<size_t>(order.variables[i])] = static_cast<int32_t>(i);
    terms_of_.resize(size);
    for (const ParetoNetwork::Edge& edge : network_.edges) place(edge_term(edge));
    List total = {{0, 0, -1}};
    for (int32_t v : order.variables) eliminate(v, total);
    std::vector<ParetoChoice> choices;
    for (const Entry& entry : total) choices.push_back(choice_of(entry));
    // Rounded up, points may beat each other in truth.
    std::ranges::sort(choices, {}, &ParetoChoice::cost);
    std::vector<ParetoChoice> front;
    for (ParetoChoice& choice : choices)
      if (front.empty() || choice.cost.bytes < front.back().cost.bytes)
        front.push_back(std::move(choice));
    return front;
  }

 private:
  struct Term {
    std::vector<int32_t> scope;  // outermost axis first
    std::vector<List> cells;
  };
  // Either an option of a variable, or two others together.
  struct Node {
    int32_t variable = -1, option = -1, variant = -1;
    int32_t first = -1, second = -1;
  };

  double up(double bytes) const { return std::ceil(bytes / resolution_) * resolution_; }
  size_t options(int32_t v) const { return network_.of(static_cast<size_t>(v)).size(); }

  Term edge_term(const ParetoNetwork::Edge& edge) const {
    Term term = {{edge.a, edge.b}, {}};
    for (const TimeBytes& cell : network_.tables[static_cast<size_t>(edge.table)])
      term.cells.push_back(is_never(cell) ? List{} : List{{cell.time, up(cell.bytes), -1}});
    return term;
  }

  void place(Term term) {
    const int32_t first = std::ranges::min(
        term.scope, {}, [&](int32_t v) { return position_[static_cast<size_t>(v)]; });
    terms_of_[static_cast<size_t>(first)].push_back(std::move(term));
  }

  void spend(double sums) {
    left_ -= sums;
    if (left_ < 0) throw OverBudget{};
  }

  int32_t join(int32_t first, int32_t second) {
    if (first < 0 || second < 0) return std::max(first, second);
    constexpr size_t kMostNodes = 40'000'000;
    if (nodes_.size() >= kMostNodes) throw OverBudget{};
    nodes_.push_back({.first = first, .second = second});
    return static_cast<int32_t>(nodes_.size() - 1);
  }

  // What no other entry beats. Of equals, the first.
  static void keep_front(List& list) {
    std::ranges::stable_sort(list, [](const Entry& a, const Entry& b) {
      return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
    });
    size_t kept = 0;
    for (const Entry& entry : list)
      if (kept == 0 || entry.bytes < list[kept - 1].bytes) list[kept++] = entry;
    list.resize(kept);
  }

  List sum(const List& a, const List& b) {
    spend(static_cast<double>(a.size() * b.size()));
    struct Pair {
      double time, bytes;
      int32_t first, second;
    };
    std::vector<Pair> pairs;
    for (const Entry& x : a)
      for (const Entry& y : b)
        pairs.push_back({x.time + y.time, x.bytes + y.bytes, x.node, y.node});
    if (a.size() > 1 && b.size() > 1)
      std::ranges::stable_sort(pairs, [](const Pair& x, const Pair& y) {
        return x.time != y.time ? x.time < y.time : x.bytes < y.bytes;
      });
    List result;
    for (const Pair& pair : pairs)
      if (result.empty() || pair.bytes < result.back().bytes)
        result.push_back({pair.time, pair.bytes, join(pair.first, pair.second)});
    return result;
  }

  void eliminate(int32_t v, List& total) {
    const std::vector<Term> terms = std::move(terms_of_[static_cast<size_t>(v)]);
    std::vector<int32_t> scope;
    for (const Term& term : terms)
      for (int32_t w : term.scope)
        if (w != v && std::ranges::find(scope, w) == scope.end()) scope.push_back(w);
    std::ranges::sort(scope);
    std::vector<List> own;
    for (size_t o = 0; o < options(v); ++o) {
      List list;
      const auto& variants = network_.of(static_cast<size_t>(v))[o];
      for (size_t k = 0; k < variants.size(); ++k) {
        nodes_.push_back({v, static_cast<int32_t>(o), static_cast<int32_t>(k)});
        list.push_back(
            {variants[k].time, up(variants[k].bytes), static_cast<int32_t>(nodes_.size() - 1)});
      }
      keep_front(list);
      own.push_back(std::move(list));
    }
    double cells = 1;
    for (int32_t w : scope) cells *= static_cast<double>(options(w));
    spend(cells * static_cast<double>(options(v)));
    Term message = {scope, {}};
    std::map<int32_t, int32_t> chosen;
    for (int32_t w : scope) chosen[w] = 0;
    for (;;) {
      List best;
      for (size_t o = 0; o < options(v); ++o) {
        chosen[v] = static_cast<int32_t>(o);
        List list = own[o];
        for (const Term& term : terms)
          if (!list.empty()) list = sum(list, cell_of(term, chosen));
        best.insert(best.end(), list.begin(), list.end());
      }
      keep_front(best);
      message.cells.push_back(std::move(best));
      size_t axis = scope.size();
      while (axis > 0) {
        int32_t& at = chosen[scope[axis - 1]];
        if (static_cast<size_t>(++at) < options(scope[axis - 1])) break;
        at = 0;
        --axis;
      }
      if (axis == 0) break;
    }
    if (scope.empty())
      total = sum(total, message.cells[0]);
    else
      place(std::move(message));
  }

  const List& cell_of(const Term& term, const std::map<int32_t, int32_t>& chosen) const {
    size_t index = 0;
    for (int32_t w : term.scope) index = index * options(w) + static_cast<size_t>(chosen.at(w));
    return term.cells[index];
  }

  ParetoChoice choice_of(const Entry& entry) const {
    ParetoChoice choice;
    choice.options.resize(network_.size(), 0);
    choice.variants.resize(network_.size(), 0);
    std::vector<int32_t> pending = {entry.node};
    while (!pending.empty()) {
      const int32_t at = pending.back();
      pending.pop_back();
      if (at < 0) continue;
      const Node& node = nodes_[static_cast<size_t>(at)];
      if (node.variable < 0) {
        pending.push_back(node.first);
        pending.push_back(node.second);
        continue;
      }
      choice.options[static_cast<size_t>(node.variable)] = node.option;
      choice.variants[static_cast<size_t>(node.variable)] = node.variant;
    }
    choice.cost = cost_of(network_, choice);
    return choice;
  }

  const ParetoNetwork& network_;
  double resolution_, left_;
  std::vector<int32_t> position_;
  std::vector<std::vector<Term>> terms_of_;  // by variable: that it goes with
  std::vector<Node> nodes_;
};

double priced(const TimeBytes& cost, const Weights& weights) {
  return weights.time * cost.time + weights.bytes * cost.bytes;
}

size_t best_variant(const std::vector<TimeBytes>& variants, const Weights& weights) {
  size_t best = 0;
  for (size_t k = 1; k < variants.size(); ++k) {
    const double cost = priced(variants[k], weights);
    const double least = priced(variants[best], weights);
    // Of equals, the one that needs less.
    if (cost < least || (cost == least && variants[k].bytes < variants[best].bytes)) best = k;
  }
  return best;
}

}  // namespace

TimeBytes cost_of(const ParetoNetwork& network, const ParetoChoice& choice) {
  TimeBytes sum;
  const auto add = [&](const TimeBytes& cost) {
    sum.time += cost.time;
    sum.bytes += cost.bytes;
  };
  for (size_t v = 0; v < network.size(); ++v)
    add(network.of(
        v)[static_cast<size_t>(choice.options[v])][static_cast<size_t>(choice.variants[v])]);
  for (const ParetoNetwork::Edge& edge : network.edges) {
    const auto a = static_cast<size_t>(edge.a), b = static_cast<size_t>(edge.b);
    add(network.tables[static_cast<size_t>(edge.table)]
                      [static_cast<size_t>(choice.options[a]) * network.of(b).size() +
                       static_cast<size_t>(choice.options[b])]);
  }
  return sum;
}

CostNetwork weighted(const ParetoNetwork& network, const Weights& weights) {
  CostNetwork result;
  std::vector<int32_t> unary;
  for (const ParetoNetwork::Options& kind : network.kinds) {
    std::vector<double> cells;
    for (const std::vector<TimeBytes>& variants : kind)
      cells.push_back(std::nearbyint(priced(variants[best_variant(variants, weights)], weights)));
    unary.push_back(result.tables.add(std::move(cells)));
  }
  for (size_t v = 0; v < network.size(); ++v) {
    result.options.push_back(static_cast<int32_t>(network.of(v).size()));
    result.unary.push_back(unary[static_cast<size_t>(network.kind_of[v])]);
  }
  // Tables by id and orientation.
  std::map<std::pair<int32_t, bool>, int32_t> made;
  for (const ParetoNetwork::Edge& edge : network.edges) {
    const bool turned = edge.a > edge.b;
    const auto [entry, fresh] = made.try_emplace({edge.table, turned}, -1);
    if (fresh) {
      const std::vector<TimeBytes>& table = network.tables[static_cast<size_t>(edge.table)];
      const size_t columns = network.of(static_cast<size_t>(edge.b)).size();
      const size_t rows = table.size() / columns;
      std::vector<double> cells(table.size());
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
          cells[turned ? j * rows + i : i * columns + j] =
              std::nearbyint(priced(table[i * columns + j], weights));
      entry->second = result.tables.add(std::move(cells));
    }
    result.edges.push_back({std::min(edge.a, edge.b), std::max(edge.a, edge.b), entry->second});
  }
  return result;
}

ParetoChoice with_variants(const ParetoNetwork& network, std::vector<int32_t> options,
                           const Weights& weights) {
  ParetoChoice choice;
  choice.options = std::move(options);
  for (size_t v = 0; v < network.size(); ++v)
    choice.variants.push_back(static_cast<int32_t>(
        best_variant(network.of(v)[static_cast<size_t>(choice.options[v])], weights)));
  choice.cost = cost_of(network, choice);
  return choice;
}

std::vector<ParetoChoice> exact_frontier(const ParetoNetwork& network,
                                         const FrontierOptions& options) {
  try {
    return ParetoElimination(network, options).run();
  } catch (const OverBudget&) {
    return {};
  }
}

// Dichotomy: between two neighbours, the price at which they cost the same either finds a choice
// below the line that joins them, or proves that there is none.
Frontier convex_frontier(const ParetoNetwork& network, const FrontierOptions& options) {
  Frontier frontier;
  frontier.optimal = true;
  // Weights are scaled up so that rounding to whole numbers does not matter, and no further than
  // sums are exact.
  const ParetoChoice any = with_variants(network, std::vector<int32_t>(network.size(), 0), {});
  const auto solve = [&](Weights weights) {
    const double largest = std::max(1.0, priced(any.cost, weights));
    const double scale = std::exp2(std::floor(std::log2(0x1p50 / largest)));
    weights = {weights.time * scale, weights.bytes * scale};
    const EliminationResult result = minimise(weighted(network, weights), options.elimination);
    frontier.optimal = frontier.optimal && result.optimal;
    return with_variants(network, result.choice, weights);
  };
  // At the ends the other cost only breaks ties.
  const TimeBytes fastest = solve({1, 0}).cost, least = solve({0, 1}).cost;
  std::vector<ParetoChoice> found = {solve({1, 0.25 / std::max(1.0, fastest.bytes)}),
                                     solve({0.25 / std::max(1.0, least.time), 1})};
  const auto known = [&](const TimeBytes& cost) {
    return std::ranges::any_of(found, [&](const ParetoChoice& c) { return c.cost == cost; });
  };
  // Largest gaps first.
  std::vector<std::pair<TimeBytes, TimeBytes>> pending = {{found[0].cost, found[1].cost}};
  for (size_t solves = 4; solves < options.most_prices && !pending.empty(); ++solves) {
    const auto widest = std::ranges::max_element(pending, {}, [](const auto& pair) {
      return (pair.second.time - pair.first.time) * (pair.first.bytes - pair.second.bytes);
    });
    const auto [fast, small] = *widest;
    pending.erase(widest);
    if (small.time <= fast.time || small.bytes >= fast.bytes) continue;
    ParetoChoice between = solve({1, (small.time - fast.time) / (fast.bytes - small.bytes)});
    if (known(between.cost)) continue;
    pending.emplace_back(fast, between.cost);
    pending.emplace_back(between.cost, small);
    found.push_back(std::move(between));
  }
  std::ranges::sort(found, {}, &ParetoChoice::cost);
  for (ParetoChoice& choice : found)
    if (frontier.choices.empty() || choice.cost.bytes < frontier.choices.back().cost.bytes)
      frontier.choices.push_back(std::move(choice));
  return frontier;
}

Frontier find_frontier(const ParetoNetwork& network, const FrontierOptions& options) {
  Frontier frontier;
  frontier.choices = exact_frontier(network, options);
  frontier.exact = !frontier.choices.empty();
  frontier.optimal = frontier.exact;
  if (!frontier.exact) frontier = convex_frontier(network, options);
  frontier.resolution = options.resolution;
  return frontier;
}

}  // namespace windlass
