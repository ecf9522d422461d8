// What the fuzz targets share: which errors are an answer, and what every model that was read must
// survive.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "windlass/base/error.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/dump.h"
#include "windlass/graph/graph.h"
#include "windlass/graph/op_info.h"
#include "windlass/model/initialise.h"

namespace windlass::fuzz {

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs `action`. A refusal is an answer; a bug in windlass and every other exception escape.
template <typename Action>
void tolerate(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal || error.kind() == ErrorKind::Runtime) throw;
    ensure(!error.message().empty(), "an error without a message");
  }
}

inline void require_finite(const Arithmetic& arithmetic) {
  ensure(std::isfinite(arithmetic.multiply_adds) && arithmetic.multiply_adds >= 0,
         "multiply-adds are not a number");
  ensure(std::isfinite(arithmetic.pointwise) && arithmetic.pointwise >= 0,
         "pointwise operations are not a number");
}

// Everything that planning and running ask of a graph.
inline void exercise(const Graph& graph) {
  constexpr std::size_t kMaxOps = 2000;
  check_graph(graph);
  if (graph.ops.size() > kMaxOps) return;
  find_blocks(graph);
  for (const Op& op : graph.ops) {
    loops_of(graph, op);
    tolerate([&] { traffic_of(graph, op); });
  }
  for (const auto& [id, value] : initial_values(graph))
    ensure(std::isfinite(value.a) && std::isfinite(value.b), "a first value is not a number");
  tolerate([&] { parameter_count(graph); });
  tolerate([&] { check_graph(with_dtype(graph, DType::BF16)); });
  tolerate([&] {
    const TrainingGraph training = differentiate(graph);
    check_graph(training.graph);
    const TrainingTotals totals = totals_of(training);
    require_finite(totals.forward);
    require_finite(totals.backward);
    dump_graph(training.graph);
  });
}

}  // namespace windlass::fuzz
