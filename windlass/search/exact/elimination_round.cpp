#include "windlass/search/exact/elimination_round.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "windlass/base/parallel.h"
#include "windlass/search/exact/join.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// A term of the sum: a table over some variables, outermost axis first.
struct Term {
  std::vector<int32_t> scope;
  int32_t table = -1;
};

// What a join does, apart from which variables they are: equal ones have equal results.
struct JoinKey {
  std::vector<int64_t> sizes;
  std::vector<std::pair<int32_t, std::vector<int32_t>>> terms;  // table, axes
  auto operator<=>(const JoinKey&) const = default;
};
struct Message {
  int32_t table = -1;
  double least = 0;  // taken off all cells
};

class Elimination {
 public:
  Elimination(const CostNetwork& network, const EliminationOrder& order,
              const EliminationOptions& options, double largest_table, double budget,
              Clock::time_point deadline, const std::function<void(double)>& progress)
      : network_(network),
        order_(order),
        tables_(network.tables),
        largest_table_(largest_table),
        budget_(budget),
        most_cells_(static_cast<double>(options.memory.value) / sizeof(double)),
        deadline_(deadline),
        progress_(progress),
        threads_(static_cast<size_t>(std::max(0, options.threads))) {}

  // Throws OutOfTime, OutOfCells.
  void run() {
    const size_t size = network_.size();
    terms_of_.resize(size);
    buckets_.resize(size);
    for (size_t v = 0; v < size; ++v) place({{static_cast<int32_t>(v)}, network_.unary[v]});
    for (const CostNetwork::Edge& edge : network_.edges) place({{edge.a, edge.b}, edge.table});
    double done = 0;
    for (int32_t v : order_.variables) {
      done += eliminate(v);
      if (progress_) progress_(done / std::max(1.0, order_.total));
    }
  }

  double bound() const { return constant_; }
  bool exact() const { return exact_; }
  double cells() const { return cells_; }
  double cells_computed() const { return cells_computed_; }
  double largest() const { return largest_; }
  Bytes message_bytes() const {
    return Bytes((tables_.cells() - network_.tables.cells()) * int64_t{sizeof(double)});
  }

  // The choice read backwards: each variable takes the first option that is best for the terms it
  // went with.
  std::vector<int32_t> choice() const {
    std::vector<int32_t> chosen(network_.size(), 0);
    for (size_t i = order_.variables.size(); i-- > 0;) {
      const auto v = static_cast<size_t>(order_.variables[i]);
      std::vector<double> total(static_cast<size_t>(network_.options[v]), 0.0);
      for (const Term& term : buckets_[v]) add_slice(term, static_cast<int32_t>(v), chosen, total);
      chosen[v] = static_cast<int32_t>(std::ranges::min_element(total) - total.begin());
    }
    return chosen;
  }

 private:
  // Hands a term to the first of its variables that goes.
  void place(Term term) {
    if (position_.empty()) {
      position_.resize(network_.size());
      for (size_t i = 0; i < order_.variables.size(); ++i)
        position_[static_cast<size_t>(order_.variables[i])] = static_cast<int32_t>(i);
    }
    const int32_t first = std::ranges::min(
        term.scope, {}, [&](int32_t v) { return position_[static_cast<size_t>(v)]; });
    terms_of_[static_cast<size_t>(first)].push_back(std::move(term));
  }

  int64_t options(int32_t v) const { return network_.options[static_cast<size_t>(v)]; }

  double product(const std::vector<int32_t>& scope) const {
    double cells = 1;
    for (int32_t v : scope) cells *= static_cast<double>(options(v));
    return cells;
  }

  // Returns the cells that the order counted for it.
  double eliminate(int32_t v) {
    std::vector<Term> terms = std::move(terms_of_[static_cast<size_t>(v)]);
    double counted = 0;
    for (std::vector<Term>& part : split(v, terms)) counted += send(v, part);
    buckets_[static_cast<size_t>(v)] = std::move(terms);
    return counted;
  }

  // Terms of one table each: all of them if it is not too large; else, largest first, each with
  // the first table that it fits into.
  std::vector<std::vector<Term>> split(int32_t v, const std::vector<Term>& terms) {
    // A message may take a quarter of the memory that is left: while it is made, terms that lie
    // the other way round are copied.
    const auto held = static_cast<double>(tables_.cells() - network_.tables.cells());
    const double largest_message = (most_cells_ - held) / 4;
    const auto fits = [&](const std::vector<int32_t>& scope) {
      const double cells = product(scope);
      return cells <= largest_table_ && cells / static_cast<double>(options(v)) <= largest_message;
    };
    std::vector<int32_t> all = union_of(terms);
    if (fits(all)) return {terms};
    exact_ = false;
    std::vector<Term> sorted = terms;
    std::ranges::stable_sort(sorted, std::greater{},
                             [&](const Term& t) { return product(t.scope); });
    std::vector<std::vector<Term>> parts;
    std::vector<std::vector<int32_t>> scopes;
    for (Term& term : sorted) {
      size_t at = 0;
      for (; at < parts.size(); ++at) {
        std::vector<Term> grown = parts[at];
        grown.push_back(term);
        std::vector<int32_t> scope = union_of(grown);
        if (!fits(scope) && scope.size() > scopes[at].size()) continue;
        scopes[at] = std::move(scope);
        break;
      }
      if (at == parts.size()) {
        parts.emplace_back();
        scopes.push_back(union_of({term}));
      }
      parts[at].push_back(std::move(term));
    }
    return parts;
  }

  static std::vector<int32_t> union_of(const std::vector<Term>& terms) {
    std::vector<int32_t> scope;
    for (const Term& term : terms) scope.insert(scope.end(), term.scope.begin(), term.scope.end());
    std::ranges::sort(scope);
    scope.erase(std::unique(scope.begin(), scope.end()), scope.end());
    return scope;
  }

  // Minimises the sum of some terms over v and hands the message on. Returns its cells.
  double send(int32_t v, const std::vector<Term>& terms) {
    std::vector<int32_t> scope = union_of(terms);
    const double cells = product(scope);
    cells_ += cells;
    largest_ = std::max(largest_, cells);
    std::erase(scope, v);
    if (scope.empty()) {
      std::vector<double> total(static_cast<size_t>(options(v)), 0.0);
      for (const Term& term : terms) add_slice(term, v, {}, total);
      cells_computed_ += cells;
      constant_ += std::ranges::min(total);
      return cells;
    }
    move_last(scope, terms);
    JoinKey key;
    std::vector<int32_t> joint = {v};
    joint.insert(joint.end(), scope.begin(), scope.end());
    for (int32_t w : joint) key.sizes.push_back(options(w));
    for (const Term& term : terms) {
      std::vector<int32_t> axes;
      for (int32_t w : term.scope)
        axes.push_back(static_cast<int32_t>(std::ranges::find(joint, w) - joint.begin()));
      key.terms.emplace_back(term.table, std::move(axes));
    }
    std::ranges::sort(key.terms);
    const auto [known, fresh] = known_.try_emplace(std::move(key));
    if (fresh) {
      if (cells_computed_ + cells > budget_) throw OutOfCells{};
      cells_computed_ += cells;
      known->second = compute(known->first);
    }
    constant_ += known->second.least;
    place({std::move(scope), known->second.table});
    return cells;
  }

  // The axis along which the minimum runs comes last: the one for which the fewest cells have to be
  // turned, of these the longest.
  void move_last(std::vector<int32_t>& scope, const std::vector<Term>& terms) const {
    const auto turned_cells = [&](int32_t w) {
      double cells = 0;
      for (const Term& term : terms)
        if (term.scope.size() > 2 && term.scope.back() != w &&
            std::ranges::find(term.scope, w) != term.scope.end())
          cells += product(term.scope);
      return cells;
    };
    size_t best = 0;
    for (size_t i = 1; i < scope.size(); ++i) {
      const double cost = turned_cells(scope[i]), best_cost = turned_cells(scope[best]);
      if (cost < best_cost || (cost == best_cost && options(scope[i]) > options(scope[best])))
        best = i;
    }
    std::rotate(scope.begin() + static_cast<std::ptrdiff_t>(best),
                scope.begin() + static_cast<std::ptrdiff_t>(best) + 1, scope.end());
  }

  Message compute(const JoinKey& key) {
    Join join;
    join.sizes = key.sizes;
    for (const auto& [table, axes] : key.terms) join.terms.push_back({tables_[table].data(), axes});
    join.prepare();
    const int64_t outer = join.outer();
    std::vector<double> result(static_cast<size_t>(outer * join.inner()));
    // Pieces of some milliseconds: between them the clock is read.
    constexpr double kPieceCells = 4e6;
    const double row_cells = static_cast<double>(join.inner() * join.sizes[0]);
    const auto piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceCells / row_cells));
    std::atomic<bool> late = false;
    in_parallel(static_cast<size_t>((outer + piece - 1) / piece), threads_, [&](size_t i) {
      if (late) return;
      const int64_t begin = static_cast<int64_t>(i) * piece;
      join.run(begin, std::min(outer, begin + piece), result.data());
      if (Clock::now() > deadline_) late = true;
    });
    if (late) throw OutOfTime{};
    Message message;
    message.least = std::ranges::min(result);
    for (double& cell : result) cell -= message.least;
    message.table = tables_.add(std::move(result));
    return message;
  }

  // Adds the cells of a term for all options of v, the other variables as chosen.
  void add_slice(const Term& term, int32_t v, const std::vector<int32_t>& chosen,
                 std::vector<double>& total) const {
    int64_t offset = 0, stride = 1, own = 0;
    for (size_t i = term.scope.size(); i-- > 0;) {
      const int32_t w = term.scope[i];
      if (w == v)
        own = stride;
      else
        offset += stride * chosen[static_cast<size_t>(w)];
      stride *= options(w);
    }
    const std::vector<double>& cells = tables_[term.table];
    for (size_t i = 0; i < total.size(); ++i)
      total[i] += cells[static_cast<size_t>(offset + own * static_cast<int64_t>(i))];
  }

  const CostNetwork& network_;
  const EliminationOrder& order_;
  CostTables tables_;
  double largest_table_, budget_, most_cells_;
  Clock::time_point deadline_;
  const std::function<void(double)>& progress_;
  size_t threads_;
  std::vector<int32_t> position_;            // in the order, by variable
  std::vector<std::vector<Term>> terms_of_;  // by variable: that it goes with
  std::vector<std::vector<Term>> buckets_;   // by variable: those it went with
  std::map<JoinKey, Message> known_;
  double constant_ = 0, cells_ = 0, cells_computed_ = 0, largest_ = 0;
  bool exact_ = true;
};

}  // namespace

EliminationRound eliminate_round(const CostNetwork& network, const EliminationOrder& order,
                                 const EliminationOptions& options, const RoundLimits& limits,
                                 const std::function<void(double)>& progress) {
  Elimination elimination(network, order, options, limits.largest_table, limits.cells,
                          limits.deadline, progress);
  elimination.run();
  return {.choice = elimination.choice(),
          .bound = elimination.bound(),
          .exact = elimination.exact(),
          .largest_table = elimination.largest(),
          .cells = elimination.cells(),
          .cells_computed = elimination.cells_computed(),
          .message_bytes = elimination.message_bytes()};
}

}  // namespace windlass
