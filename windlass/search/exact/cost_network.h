// A min-sum problem: variables that each take one of several options, costs of single options, and
// costs of pairs of options of two variables. The sharding of a graph is one: a variable for each
// op, an edge for each tensor.
//
// Costs are whole numbers kept in doubles. Sums below 2^53 are then exact, whatever their order, so
// that a result does not depend on the order of elimination or on the number of threads; larger
// sums are rounded monotonically and can never look smaller than an exact one.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace windlass {

// Tables that are equal cell by cell have one id.
class CostTables {
 public:
  // The id of a table with these cells.
  int32_t add(std::vector<double> cells);
  const std::vector<double>& operator[](int32_t id) const {
    return tables_[static_cast<size_t>(id)];
  }
  size_t size() const { return tables_.size(); }
  int64_t cells() const { return cells_; }

 private:
  std::vector<std::vector<double>> tables_;
  std::multimap<uint64_t, int32_t> index_;  // by hash
  int64_t cells_ = 0;
};

// Invariants (check_network): unary tables have a cell for each option, pair tables are
// options[a] x options[b], row-major; a < b, and no two edges join the same variables; costs are
// whole, not negative and finite.
struct CostNetwork {
  struct Edge {
    int32_t a = 0, b = 0;
    int32_t table = -1;
  };
  std::vector<int32_t> options;  // by variable: how many
  std::vector<int32_t> unary;    // by variable: table
  std::vector<Edge> edges;
  CostTables tables;

  size_t size() const { return options.size(); }
  // Adds to the costs of a pair of variables, making its edge if there is none; `cells` is
  // options[a] x options[b], in that order of a and b.
  void add_pair(int32_t a, int32_t b, std::vector<double> cells);

 private:
  std::map<std::pair<int32_t, int32_t>, size_t> edge_index_;
};

// Throws Error{Internal} naming the first violated invariant.
void check_network(const CostNetwork& network);

// Of one choice of all variables.
double cost_of(const CostNetwork& network, std::span<const int32_t> choice);

// The same problem in the text format of weighted constraint solvers (wcsp), with an upper bound
// above all choices. Throws Error{Unsupported} if a cost does not fit into 63 bits.
std::string to_wcsp(const CostNetwork& network, const std::string& name);

}  // namespace windlass
