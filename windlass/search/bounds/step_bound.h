// A lower bound on the simulated time of a step, found in a small part of the time that lowering
// and simulating it take.
//
// Lanes run their tasks in a fixed order, so without full memory and crowded links a step is a
// walk: a task starts when its lane and its operands are there. The bound is that walk over ops
// instead of tasks, for one micro-batch: work on the compute lane, redistributions on the lane
// beside it, each as fast as when nobody else uses the links. Gradients are reduced one after the
// other as soon as they are made, without latencies. What waits for memory, for links that others
// use, for the host or for streamed weights is not waited for here, which only makes the bound
// smaller.
//
// Plain steps (one micro-batch, every saved tensor kept, all devices alike) are walked with all
// their tasks. If all that they ever keep fits, the simulated time itself is found.
//
// Several groups (pipelines): each group's own work, after one micro-batch has come to it and
// before one has gone back.
//
// Of measured prices, paging, packs of layers, copies in turn, and unequal parts or micro-batches
// nothing is known: the bound is 0.
#pragma once

#include <cstdint>
#include <memory>

#include "windlass/search/search.h"

namespace windlass {

// For strategies of one training graph. Keeps what it has worked out; not shared between threads.
class StepBound {
 public:
  // `training` and the problem must outlive it.
  StepBound(const Problem& problem, const TrainingGraph& training);
  ~StepBound();
  StepBound(StepBound&&) noexcept;

  // No more than the simulated makespan. May stop, with a bound above `enough`, when it is.
  Nanoseconds operator()(const Strategy& strategy, Nanoseconds enough);
  // Whether that was the simulated makespan itself, and the step fits.
  bool exact() const;

  // Whether some device surely has too little memory: what is kept of the micro-batches that are
  // under way when the first backward pass begins, and the weights and optimizer state beside.
  bool too_large(const Strategy& strategy);
  // The same whatever becomes of saved tensors: weights and optimizer state alone.
  bool never_fits(const Strategy& strategy);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace windlass
