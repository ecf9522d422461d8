// The sharding of a training step as a min-sum problem over windlass's own prices: a variable for
// each forward op (its backward op and the updates of its weights go with it), an option for each
// sharding, and beside the sharding the choices that are local to the op: how its weights are
// shared out over replicas or kept on the host, and whether its saved results stay or go to the
// host. On request the option also says whether the op is run again in the backward pass, which its
// neighbours have to agree with (fates.h).
//
// Time is a sum: an op's work, forward and backward; what its pieces exchange; reducing and
// updating its weights; and, for each tensor between two ops, the redistribution from one layout to
// the other and that of the gradient back. Nothing overlaps in this sum, unless asked for: then a
// share of the traffic of weights and their gradients is left out. Prices are those that lowering
// and the simulator use; moves so slow that no fastest sharding can contain them are priced from
// below.
//
// Bytes of a device are a sum as well: weights, gradients, optimizer state, and saved tensors as
// their readers want them. What lives for one op only is not in it: the simulator adds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/search/exact/frontier.h"
#include "windlass/search/exact/sharding/fates.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// Choices local to an op under one sharding.
struct LocalChoice {
  TimeBytes cost;                           // nanoseconds, whole; bytes of each device
  double hideable = 0;                      // nanoseconds of it that can run beside computation
  Residency residency = {};                 // of all its weights
  MemoryAction saved = MemoryAction::Keep;  // of all it makes that is saved
};

struct ShardingProblemOptions {
  std::vector<DeviceId> devices = {};  // as one group; empty: all of the machine
  bool memory_choices = true;          // residency and offloading; else everything stays
  // Beside memory choices: recomputation of single ops. Then every move is priced exactly.
  bool recompute = false;
  // Asked now and then. Once it says yes, moves that are not priced yet cost nothing: the problem
  // is then no longer complete, and its least sum is a lower bound only.
  std::function<bool()> out_of_time = {};
};

struct ShardingProblem {
  std::vector<DeviceId> devices;
  // Ops that are alike share everything: kinds.
  std::vector<int32_t> kind_of;                                // by forward op
  std::vector<std::vector<Sharding>> shardings;                // by kind and option
  std::vector<std::vector<Fate>> fates;                        // by kind and option
  std::vector<std::vector<std::vector<LocalChoice>>> choices;  // by kind and option: a Pareto
                                                               // front, time ascending
  std::vector<double> work;                    // by kind: least nanoseconds of computation
  std::vector<ParetoNetwork::Edge> edges;      // of ops
  std::vector<std::vector<TimeBytes>> tables;  // [options of one][options of the other]; kNever in
                                               // both where they do not go together

  const std::vector<Sharding>& of(size_t op) const {
    return shardings[static_cast<size_t>(kind_of[op])];
  }
  const std::vector<std::vector<LocalChoice>>& choices_of(size_t op) const {
    return choices[static_cast<size_t>(kind_of[op])];
  }

  bool complete = true;  // every move is priced

  // Variants are local choices. `overlap` is the share of what can be hidden
  // that is: 0 adds everything up.
  ParetoNetwork network(double overlap = 0) const;
  // Nanoseconds that some device computes in any case.
  double least_work() const;
  // As a strategy on all `devices`.
  Strategy strategy(const TrainingGraph& training, const ParetoChoice& choice) const;
};

// Cells of all tables of eliminating the same problem with recomputation; infinite if that is no
// option (FateRules::possible).
double cells_with_recompute(const TrainingGraph& training, const ShardingProblem& plain);

// `training` is the step of one micro-batch; `micro_batches` of them make a step, updates happen
// once.
ShardingProblem make_sharding_problem(const TrainingGraph& training, const Machine& machine,
                                      const CostModel& cost, int64_t micro_batches = 1,
                                      const ShardingProblemOptions& options = {});

}  // namespace windlass
