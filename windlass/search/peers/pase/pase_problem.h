// PaSE's own problem: its configurations and its cost model, so that results can be compared with
// the paper and its code on equal terms. Costs are in FLOP; a multiply-add counts one, a word has 8
// bytes, parts are divided in real numbers, and nothing overlaps. (Elango, IPDPS 2021, and the
// released code baidu-research/PaSE; formulas in pase_costs.cpp.)
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/model/pase/layer_graph.h"
#include "windlass/search/exact/cost_network.h"

namespace windlass {

struct PaseMachine {
  int64_t devices = 1;
  double teraflops = 10;  // of a device
  double gigabytes = 16;  // per second, of a link
  // FLOP that take as long as moving a word.
  double flops_per_word() const { return teraflops * 1000 / (gigabytes / 8); }
};

// Parts along each dimension of the iteration space.
using Configuration = std::vector<int64_t>;

// All that PaSE considers: parts divide their dimension, leave at least the cutoff in each part
// (one part is always allowed), multiply to at most the number of devices, and keep to what the
// layer allows. In lexicographic order.
std::vector<Configuration> configurations_of(const Layer& layer, int64_t cutoff, int64_t devices);

// Parts of each dimension of an operand.
Configuration parts_of_output(const Layer& layer, const Configuration& parts, size_t output);
Configuration parts_of_input(const Layer& layer, const Configuration& parts, size_t input);

// FLOP of a layer under a configuration, communication inside of the layer included, and of moving
// a tensor from one configuration to another, forward and backward.
double layer_cost(const Layer& layer, const Configuration& parts, double flops_per_word);
double tensor_cost(const Extents& shape, const Configuration& from, const Configuration& to,
                   double flops_per_word);

// The problem of a whole graph. Where several tensors join the same two layers, the last one counts
// alone, as in PaSE's code.
struct PaseProblem {
  std::vector<std::vector<Configuration>> configurations;  // by kind of vertex
  std::vector<int32_t> kind_of;                            // by vertex
  CostNetwork network;                                     // costs in units
  double unit = 1;                                         // FLOP; a power of two, at most 1

  const std::vector<Configuration>& of(size_t vertex) const {
    return configurations[static_cast<size_t>(kind_of[vertex])];
  }
};
// Equal layers are enumerated and priced once. Throws Error{Input} if a layer has more than a
// million configurations.
PaseProblem make_pase_problem(const LayerGraph& graph, const PaseMachine& machine);

// FLOP of a strategy, without rounding to units: one configuration a vertex, as indices into
// PaseProblem::of().
double pase_cost(const LayerGraph& graph, const PaseMachine& machine, const PaseProblem& problem,
                 const std::vector<int32_t>& choice);

}  // namespace windlass
