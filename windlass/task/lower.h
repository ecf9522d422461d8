// From decisions to tasks: lower() turns a strategy into the task graph that carries it out.
#pragma once

#include <memory>

#include "windlass/cost/allocation.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/strategy.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// Lowers one strategy after the other for the same training graph and machine. What depends on an
// op and its sharding, or on two layouts, is worked out once and kept. Not shared between threads.
//
// `training` is the step of one micro-batch; the strategy says how many there are. Packs of layers
// are lowered at the grain of ops (packs/lower_packs.h), anew each time.
class Lowering {
 public:
  Lowering(const TrainingGraph& training, const Machine& machine);
  ~Lowering();
  Lowering(Lowering&&) noexcept;
  Lowering& operator=(Lowering&&) noexcept;

  // Valid until the next call. Throws Error{Input} as check_strategy() does, and as
  // lower_packs() does. Work and traffic keep their indices from call to call, but not of packs.
  const TaskGraph& lower(const Strategy& strategy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

TaskGraph lower(const TrainingGraph& training, const Strategy& strategy, const Machine& machine);

}  // namespace windlass
