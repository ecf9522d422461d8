// The sharding of a training step as a min-sum problem over windlass's own prices: a variable for
// each forward op (its backward op and the updates of its weights go with it), an option for each
// sharding, and beside the sharding the choices that are local to the op: how its weights are
// shared out over replicas or kept on the host, and whether its saved results stay or go to the
// host.
//
// Time is a sum: an op's work, forward and backward; what its pieces exchange; reducing and
// updating its weights; and, for each tensor between two ops, the redistribution from one layout to
// the other and that of the gradient back. Nothing overlaps in this sum; `overlap` says which share
// of the traffic that can run beside computation (gradients of weights, copies to the host) is left
// out of it. Prices are those that lowering and the simulator use.
//
// Bytes of a device are a sum as well: weights, gradients, optimizer state, and saved tensors as
// their readers want them. What lives for one op only is not in it: the simulator adds it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/search/exact/cost_network.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// A point of time and memory.
struct TimeBytes {
  double time = 0;   // nanoseconds, whole
  double bytes = 0;  // of each device
  auto operator<=>(const TimeBytes&) const = default;
};

// Choices local to an op under one sharding.
struct LocalChoice {
  TimeBytes cost;
  Residency residency = {};                 // of all its weights
  MemoryAction saved = MemoryAction::Keep;  // of all it makes that is saved
};

struct ShardingProblemOptions {
  double overlap = 0;          // 0: everything adds up, 1: what can overlap is free
  bool memory_choices = true;  // residency and offloading; else everything stays
};

struct ShardingProblem {
  // Ops that are alike share everything: kinds.
  std::vector<int32_t> kind_of;                                // by forward op
  std::vector<std::vector<Sharding>> shardings;                // by kind
  std::vector<std::vector<std::vector<LocalChoice>>> choices;  // by kind and sharding: a Pareto
                                                               // front, time ascending
  struct Edge {
    int32_t from = 0, to = 0;  // ops
    int32_t table = -1;
  };
  std::vector<Edge> edges;                     // each pair of ops once, from < to
  std::vector<std::vector<TimeBytes>> tables;  // [shardings of from][shardings of to]

  const std::vector<Sharding>& of(size_t op) const {
    return shardings[static_cast<size_t>(kind_of[op])];
  }
  const std::vector<std::vector<LocalChoice>>& choices_of(size_t op) const {
    return choices[static_cast<size_t>(kind_of[op])];
  }

  // The problem of least time + price * bytes, in nanoseconds.
  CostNetwork network(double nanoseconds_per_byte) const;
  // The local choice that is best at a price.
  size_t best_choice(size_t op, size_t sharding, double nanoseconds_per_byte) const;
  // What a choice of shardings and local choices comes to.
  TimeBytes total(const std::vector<int32_t>& shardings_chosen,
                  const std::vector<int32_t>& locals) const;
  // As a strategy on all devices, one micro-batch at a time.
  Strategy strategy(const TrainingGraph& training, const Machine& machine,
                    const std::vector<int32_t>& shardings_chosen,
                    const std::vector<int32_t>& locals) const;
};

// `training` is the step of one micro-batch; `micro_batches` of them make a step, updates happen
// once.
ShardingProblem make_sharding_problem(const TrainingGraph& training, const Machine& machine,
                                      const CostModel& cost, int64_t micro_batches = 1,
                                      const ShardingProblemOptions& options = {});

}  // namespace windlass
