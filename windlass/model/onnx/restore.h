// Undoing what exporters do to parameters, so that training sees the network as it was defined.
//
// PyTorch's exporter, asked for inference (its default), folds batch normalisation into convolutions,
// computes with parameters where it can (relative position tables are gathered, weights transposed),
// and stores equal values once, aliased by Identity nodes: freshly initialised biases, for instance.
// What is gone can be recognised by names and values; these are the tests.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "windlass/graph/shape.h"

namespace windlass {

// Names that PyTorch's exporter gives to values it made itself: "onnx::Add_123", "215", "/Constant_1".
bool is_anonymous_name(std::string_view name);

// Endings by which PyTorch modules call what is stored but not trained.
bool is_buffer_name(std::string_view name);

// Whether all values are one number, so that equality with another tensor says nothing.
bool is_uniform(const std::vector<double>& values);

// Whether the values are those of an additive mask: zeros and one large negative number.
bool is_additive_mask(const std::vector<double>& values);

// A relative position bias [.., heads, n, n] over windows of n = side^2 places, computed from a table of
// (2 side - 1)^2 rows: entry (i, j) depends on the offset between places i and j only.
struct RelativeBias {
  int64_t side = 0;
  int64_t heads = 0;
  std::vector<double> table;  // [(2 side - 1)^2, heads]
  std::vector<double> index;  // [n * n]: row of the table
};
std::optional<RelativeBias> find_relative_bias(const Shape& shape, const std::vector<double>& values);

}  // namespace windlass
