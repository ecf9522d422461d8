// Where infinities and NaN come from.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/runtime/executor.h"

namespace windlass {

// The first tensor of a forward pass that holds what it should not.
struct NotFinite {
  TensorId tensor;
  TensorId from = {};  // an operand that was infinite before it was NaN, if there is one
  double value = 0;    // the first such element
  int64_t place = 0;   // its flat index
};

// Goes through the forward pass of a micro-batch again. Infinities of constants and buffers are
// meant, and so is what is made of them by other ops as long as it is not NaN. Nothing if all else
// is finite. The executor may have failed; memory is taken outside its limits. `mean_counts` is by
// op, or empty (load_counts.h).
std::optional<NotFinite> find_not_finite(
    const TrainingGraph& training, Executor& executor,
    const std::function<void(TensorId, std::span<std::byte>)>& load,
    const std::vector<double>& mean_counts);

// Which tensor it was, how it came about and what to do, for people; `step` counts from 1.
std::string describe(const Graph& graph, const NotFinite& found, int64_t step);

}  // namespace windlass
