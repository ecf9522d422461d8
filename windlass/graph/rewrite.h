// Rewriting a graph op by op.
#pragma once

#include <string>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// Emits a new list of ops for a forward graph while the old one stays readable for matching.
// Usage: for each old op either keep(), replace() or substitute() it, then finish().
class Rewriter {
 public:
  explicit Rewriter(Graph& graph);

  const Graph& graph() const { return graph_; }
  const Tensor& tensor(TensorId id) const { return graph_[id]; }
  const Shape& shape(TensorId id) const { return graph_[id].type.shape; }

  // The op that produced a tensor before this pass, or null.
  const Op* producer(TensorId id) const;
  // The same, if it is of that kind.
  const Op* producer(TensorId id, OpKind kind) const;
  // Number of ops that read the tensor before this pass; outputs of the graph count as one more.
  size_t uses(TensorId id) const { return uses_[id.index()]; }
  const std::vector<double>* value(TensorId id) const;

  // Emits a new op and returns its first output.
  TensorId emit(OpKind kind, Attrs attrs, std::vector<TensorId> inputs, std::string name);
  TensorId constant(std::string name, TensorType type, std::vector<double> values);

  // Emits the old op unchanged (with substituted inputs).
  void keep(const Op& op);
  // Emits another op that computes the first output of `old`. Its type must be the same.
  void replace(const Op& old, OpKind kind, Attrs attrs, std::vector<TensorId> inputs);
  // From now on reads of `old` become reads of `replacement`; nothing is emitted. Both have one
  // type.
  void substitute(TensorId old, TensorId replacement);
  // What a tensor is called now.
  TensorId current(TensorId id) const;

  // Installs the new ops, removes what is dead.
  void finish();

 private:
  Graph& graph_;
  std::vector<Op> old_;
  std::vector<Op> ops_;
  std::vector<size_t> uses_;
  std::vector<TensorId> renamed_;
};

}  // namespace windlass
