// Graphs as text: for people, for tests, and for Graphviz.
#pragma once

#include <string>

#include "windlass/graph/graph.h"

namespace windlass {

// One line per op: `%7: fp32[2, 64] = Linear %5 %1 %2 {input_major=false}  "fc1"`, sources first.
// Backward ops name their forward op and what they read of it.
std::string dump_graph(const Graph& graph);

// Graphviz: ops as boxes coloured by pass, edges labelled with tensor types.
std::string dump_dot(const Graph& graph);

}  // namespace windlass
