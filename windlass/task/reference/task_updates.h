// Updates of weights by the slow executor, with the squares of gradients that clipping reads.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/task/reference/held_values.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::reference {

class TaskUpdates {
 public:
  // All must outlive it. Gradients that weights are updated with are noted in `end`.
  TaskUpdates(const TrainingGraph& training, const TaskGraph& tasks, const StepStart& start,
              HeldValues& held, StepEnd& end)
      : training_(training),
        tasks_(tasks),
        start_(start),
        held_(held),
        end_(end),
        first_update_(training.forward_ops + training.backward_ops) {}

  // Of members that have the same element, the first one counts it.
  void add_squares(TaskId id);
  void update(TaskId id);

 private:
  // Operands of one update on one member.
  struct Operands {
    std::vector<const Use*> gradients;
    const Use* weight = nullptr;
    const Use* state = nullptr;
  };

  const Shape& shape(TensorId id) const { return training_.graph[id].type.shape; }
  const Op& update_op(size_t update) const { return training_.graph.ops[first_update_ + update]; }
  // Elements of a whole tensor that a member has of a buffer, or of its share of it.
  std::vector<bool> elements_of(BufferId id, int64_t member, int32_t shared) const;
  void update(uint32_t u, const Operands& operands, int64_t member, int32_t shared, double scale);
  void note_gradient(uint32_t u, const Region& region, const Range& mine,
                     const std::vector<double>& gradient);

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  const StepStart& start_;
  HeldValues& held_;
  StepEnd& end_;
  const size_t first_update_;
};

}  // namespace windlass::reference
