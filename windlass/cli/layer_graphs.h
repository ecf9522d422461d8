// Graphs of layers as a source of problems: PaSE's own, from a file or by name.
#pragma once

#include <optional>
#include <string>

#include "windlass/model/pase/layer_graph.h"
#include "windlass/search/peers/pase/pase_problem.h"

namespace windlass {

enum class ExitCode : int;

// The graph that a MODEL argument names: "pase:NAME", or a JSON file with vertices and edges.
// Nothing if it is neither; `insist`: a file must be one. Throws Error{Input} if it is one and
// broken, or no such name.
std::optional<LayerGraph> find_layer_graph(const std::string& model, int64_t batch,
                                           bool insist = false);

struct PlanGraphFlags {
  PaseMachine machine;
  double time_limit = 60;
  int threads = 0;
  bool json = false;
};

// The exact search with PaSE's cost model: prints the optimum and the configuration of each vertex.
ExitCode run_plan_graph(const LayerGraph& graph, const PlanGraphFlags& flags);

}  // namespace windlass
