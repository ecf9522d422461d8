#include "windlass/search/exact/polish.h"

#include <algorithm>

#include "windlass/graph/blocks.h"
#include "windlass/task/facts.h"

namespace windlass {
namespace {

class Polish {
 public:
  Polish(const TrainingGraph& training, const ShardingProblem& sharding, Evaluator& evaluator,
         Strategy& best, Nanoseconds time, const PolishOptions& options)
      : training_(training),
        facts_(training),
        sharding_(sharding),
        evaluator_(evaluator),
        best_(best),
        time_(time),
        options_(options) {}

  Nanoseconds run(const std::vector<Strategy>& others) {
    Graph forward = training_.graph;
    forward.ops.resize(training_.forward_ops);
    const std::vector<size_t> cuts = cut_points(forward);
    list_edges();
    for (const Strategy& other : others) cross(other, cuts);
    while (change_kinds()) {
    }
    while (change_ops()) {
    }
    return time_;
  }

 private:
  bool done() { return left() <= 0 || (options_.out_of_time && options_.out_of_time()); }
  int64_t left() const { return options_.evaluations - tried_; }

  bool try_strategy(Strategy strategy) {
    ++tried_;
    const auto found = evaluator_.evaluate_below(strategy, time_ - 1);
    if (!found || !found->fits || found->time >= time_) return false;
    best_ = std::move(strategy);
    time_ = found->time;
    return true;
  }

  static int32_t index_of(Strategy& strategy, const Sharding& sharding) {
    const auto known = std::ranges::find(strategy.shardings, sharding);
    const auto index = static_cast<int32_t>(known - strategy.shardings.begin());
    if (known == strategy.shardings.end()) strategy.shardings.push_back(sharding);
    return index;
  }

  // Ops [first, last) as `other` has them.
  Strategy crossed(const Strategy& other, size_t first, size_t last) const {
    Strategy strategy = best_;
    const auto inside = [&](OpId op) {
      return op.valid() && first <= op.index() && op.index() < last;
    };
    for (size_t i = first; i < last; ++i)
      strategy.ops[i] = index_of(strategy, other.shardings[static_cast<size_t>(other.ops[i])]);
    for (size_t s = 0; s < training_.saved.size(); ++s)
      if (inside(training_.saved[s].producer)) strategy.saved[s] = other.saved[s];
    for (size_t u = 0; u < facts_.updates.size(); ++u)
      if (inside(facts_.first_use[u].first)) strategy.weights[u] = other.weights[u];
    return strategy;
  }

  void cross(const Strategy& other, const std::vector<size_t>& cuts) {
    for (size_t cut : cuts) {
      if (done()) return;
      if (cut + 1 >= training_.forward_ops) break;
      try_strategy(crossed(other, cut + 1, training_.forward_ops));
      try_strategy(crossed(other, 0, cut + 1));
    }
  }

  // The option of each op, -1 if its sharding is none of them.
  std::vector<int32_t> options_of(const Strategy& strategy) const {
    std::vector<int32_t> chosen;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      const auto& list = sharding_.of(i);
      const auto at =
          std::ranges::find(list, strategy.shardings[static_cast<size_t>(strategy.ops[i])]);
      chosen.push_back(at == list.end() ? -1 : static_cast<int32_t>(at - list.begin()));
    }
    return chosen;
  }

  void list_edges() {
    edges_of_.resize(training_.forward_ops);
    for (size_t e = 0; e < sharding_.edges.size(); ++e) {
      edges_of_[static_cast<size_t>(sharding_.edges[e].a)].push_back(e);
      edges_of_[static_cast<size_t>(sharding_.edges[e].b)].push_back(e);
    }
    ops_of_.resize(sharding_.choices.size());
    for (size_t i = 0; i < training_.forward_ops; ++i)
      ops_of_[static_cast<size_t>(sharding_.kind_of[i])].push_back(i);
  }

  // One round over all kinds of ops, each changed in all blocks at once; whether anything helped.
  bool change_kinds() {
    std::vector<int32_t> chosen = options_of(best_);
    bool helped = false;
    for (const std::vector<size_t>& ops : ops_of_)
      if (ops.size() > 1 && !done()) helped |= change(ops, chosen);
    return helped;
  }

  // One round over all ops; whether anything helped.
  bool change_ops() {
    std::vector<int32_t> chosen = options_of(best_);
    bool helped = false;
    for (size_t i = 0; i < training_.forward_ops && !done(); ++i) helped |= change({i}, chosen);
    return helped && !done();
  }

  // Ops of one kind with another option, the most promising ones by their sums first.
  bool change(const std::vector<size_t>& ops, std::vector<int32_t>& chosen) {
    constexpr size_t kTries = 3;
    std::vector<std::pair<double, int32_t>> ranked;
    for (size_t o = 0; o < sharding_.of(ops[0]).size(); ++o) {
      const auto option = static_cast<int32_t>(o);
      if (std::ranges::all_of(ops, [&](size_t i) { return chosen[i] == option; })) continue;
      double sum = 0;
      for (size_t i : ops) sum += sum_of(i, o, edges_of_[i], chosen);
      ranked.emplace_back(sum, option);
    }
    const size_t tries = std::min(kTries, ranked.size());
    std::ranges::partial_sort(ranked, ranked.begin() + static_cast<std::ptrdiff_t>(tries));
    for (size_t t = 0; t < tries; ++t) {
      if (done()) return false;
      Strategy strategy = best_;
      const int32_t sharding =
          index_of(strategy, sharding_.of(ops[0])[static_cast<size_t>(ranked[t].second)]);
      for (size_t i : ops) strategy.ops[i] = sharding;
      if (!try_strategy(std::move(strategy))) continue;
      for (size_t i : ops) chosen[i] = ranked[t].second;
      return true;
    }
    return false;
  }

  // What option o of op i adds to the sum of times, its neighbours as they are.
  double sum_of(size_t i, size_t o, const std::vector<size_t>& edges,
                const std::vector<int32_t>& chosen) const {
    double sum = sharding_.choices_of(i)[o][0].cost.time;
    for (size_t e : edges) {
      const ParetoNetwork::Edge& edge = sharding_.edges[e];
      const bool first = static_cast<size_t>(edge.a) == i;
      const int32_t other = chosen[static_cast<size_t>(first ? edge.b : edge.a)];
      if (other < 0) continue;
      const size_t columns = sharding_.of(static_cast<size_t>(edge.b)).size();
      const size_t row = first ? o : static_cast<size_t>(other);
      const size_t column = first ? static_cast<size_t>(other) : o;
      sum += sharding_.tables[static_cast<size_t>(edge.table)][row * columns + column].time;
    }
    return sum;
  }

  const TrainingGraph& training_;
  TrainingFacts facts_;
  const ShardingProblem& sharding_;
  Evaluator& evaluator_;
  Strategy& best_;
  Nanoseconds time_;
  const PolishOptions& options_;
  int64_t tried_ = 0;
  std::vector<std::vector<size_t>> edges_of_;  // by forward op
  std::vector<std::vector<size_t>> ops_of_;    // by kind
};

}  // namespace

Nanoseconds polish(const TrainingGraph& training, const ShardingProblem& sharding,
                   const std::vector<Strategy>& others, Evaluator& evaluator, Strategy& best,
                   Nanoseconds time, const PolishOptions& options) {
  return Polish(training, sharding, evaluator, best, time, options).run(others);
}

}  // namespace windlass
