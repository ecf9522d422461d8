// What becomes of the stored tensors of an imported graph: which ops read them, through what.
#pragma once

#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// Tensors that a gradient of those that are `reached` could reach.
std::vector<bool> follow_gradients(const Graph& graph, std::vector<bool> reached);

// Looks at a graph that does not change as long as this lives.
class StoredUses {
 public:
  explicit StoredUses(const Graph& graph);

  // Whether a gradient of an output or of the loss could reach it.
  bool is_reached(TensorId id) const { return reached_[id.index()]; }
  bool feeds(TensorId id, OpKind kind) const;

  // Whether all that becomes of it ends in sines and cosines, having met only positions and
  // constants.
  bool is_frequency(TensorId id) const;
  // The same where it meets data, but no other stored tensor; then in both.
  bool is_frequency_of_data(TensorId id) const;

  // Whether all that becomes of it is elementwise: it is combined with other values or, if
  // `functions`, a function is taken of it before. Weights of products, convolutions and norms are
  // none of these.
  bool is_only_combined(TensorId id, bool functions) const;
  // The same where a product with another stored tensor will do as well.
  bool is_combined_or_layered(TensorId id) const;
  // Whether it is combined with values, is a factor of products and convolutions, or joined to
  // other values, and nothing else.
  bool is_operand(TensorId id) const;
  // Whether convolutions read it as their weight, and nothing else does.
  bool is_only_filter(TensorId id) const;
  // Whether single elements are taken out of it by indices that are not stored, and nothing else.
  bool is_only_looked_up(TensorId id) const;
  // Whether it has the name of a mean or a deviation, and is subtracted from the data or they are
  // divided by it: no weight has touched these before.
  bool is_standardised(TensorId id) const { return standardised_[id.index()]; }

 private:
  bool ends_in_waves(TensorId id, bool data) const;
  bool is_combined(TensorId id, bool functions, bool layers) const;
  bool is_output(TensorId id) const;

  const Graph& graph_;
  std::vector<std::vector<OpId>> consumers_;
  std::vector<bool> reached_;
  std::vector<bool> positional_;  // made of constants and whole numbers only
  std::vector<bool> stored_;      // no input reaches it
  std::vector<bool> standardised_;
  bool waves_ = false;  // some op is a sine or a cosine
};

}  // namespace windlass
