// What the names of stored tensors say of them.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "windlass/graph/graph.h"

namespace windlass {

// "weight" of "encoder.0.weight", and "encoder.0." before it.
std::string_view last_part(std::string_view name);
std::string_view module_part(std::string_view name);

// Whether a name is one that PyTorch's own modules give to their parameters, or none at all: what
// an exporter computed from these.
bool is_module_parameter(std::string_view name);

// Whether a name is such a one, or one that people give to parameters of their own.
bool is_name_of_parameter(std::string_view name);

// Names of constants that a tool moved out of the graph: "/block/Constant_3_output_0",
// "_Constant_5_output_0".
bool is_constant_name(std::string_view name);

// Whether a name ends as those of the mean and the deviation of data do.
bool is_name_of_data(std::string_view name);

// Names of all stored tensors, and what those of one module say of each other.
class Siblings {
 public:
  explicit Siblings(const Graph& graph);

  // PyTorch's spectral norm keeps two vectors beside each weight that it divides:
  // "a.weight_u" and "a.weight_v" beside "a.weight_orig", or
  // "a.parametrizations.weight.0._u" beside "a.parametrizations.weight.original".
  bool is_spectral_vector(std::string_view name) const;
  // "bn.weight" or "bn.bias" beside running statistics.
  bool is_beside_statistics(std::string_view name) const;
  // What a noisy layer was last disturbed by: "a.weight_epsilon" beside "a.weight_sigma".
  bool is_noise(std::string_view name) const;

 private:
  bool has(std::string_view stem, std::string_view ending) const;

  std::set<std::string, std::less<>> names_;
};

}  // namespace windlass
