// Building graphs op by op, with types inferred and checked on the way.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// An op whose inputs are all known constants is evaluated at once if that is cheap.
struct BuilderOptions {
  int64_t fold_limit = int64_t{1} << 22;        // elements of one result
  int64_t fold_total = int64_t{1} << 25;        // elements of all results together
  double fold_work = double{int64_t{1} << 27};  // elementary steps of all evaluations together
};

// Grows a Graph; tensors and ops are appended, never removed. Errors of an op carry its name.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name, BuilderOptions options = {});

  TensorId input(std::string name, TensorType type);
  TensorId label(std::string name, TensorType type);
  TensorId weight(std::string name, TensorType type, bool trainable = true);
  TensorId buffer(std::string name, TensorType type);
  TensorId constant(std::string name, TensorType type, std::vector<double> values);
  TensorId scalar(double value, DType dtype = DType::F32);

  // Appends an op and returns its outputs. `name` names the op; outputs are named after it.
  std::vector<TensorId> add(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                            std::string name);
  // The same for ops of which only the first output is wanted.
  TensorId op(OpKind kind, Attrs attrs, std::vector<TensorId> inputs, std::string name);

  const Graph& graph() const { return graph_; }
  const TensorType& type(TensorId id) const { return graph_[id].type; }
  const Shape& shape(TensorId id) const { return graph_[id].type.shape; }
  // Values of a constant tensor, or null.
  const std::vector<double>* value(TensorId id) const;

  // Takes elements and steps from what the options leave for evaluating constants. False, and
  // nothing is taken, if not enough is left. For callers that evaluate constants themselves.
  bool spend(int64_t elements, double steps);

  void set_output(TensorId id) { graph_.outputs.push_back(id); }
  void set_loss(TensorId id) { graph_.loss = id; }
  Tensor& tensor(TensorId id) { return graph_[id]; }

  // Attaches a mean cross-entropy or squared-error loss to `prediction`, with a new label input.
  // Cross-entropy takes classes along class_axis (loss_spec.h, which has more losses).
  TensorId attach_cross_entropy(TensorId prediction);
  TensorId attach_mean_squared_error(TensorId prediction);

  // The finished graph: dead ops removed, invariants checked. The builder is empty afterwards.
  Graph finish();

 private:
  TensorId add_tensor(Tensor tensor);

  bool can_evaluate(const Op& op, const std::vector<TensorType>& types);

  Graph graph_;
  BuilderOptions options_;  // with what is left of the totals
};

}  // namespace windlass
