// Statistics of coupled ops (graph/coupled.h) in the slow executor: made by the pieces, merged,
// read where ops end.
#pragma once

#include <map>
#include <utility>

#include "windlass/graph/coupled.h"
#include "windlass/task/reference/held_values.h"

namespace windlass::reference {

class StatisticsExchange {
 public:
  StatisticsExchange(HeldValues& held, const TaskGraph& tasks) : held_(held), tasks_(tasks) {}

  // Statistics of a member's piece, made by a task that begins an op.
  void begin(TaskId id, const Exchange& exchange, int64_t member, Array array);
  // Those of the pieces become those of all.
  void merge(TaskId id);
  // Those of all, for a task that ends an op; null for one that has none.
  const Array* of(TaskId id, int64_t member);

 private:
  const Use* find(TaskId id) const;

  HeldValues& held_;
  const TaskGraph& tasks_;
  std::map<std::pair<int32_t, int64_t>, Exchange> unmerged_;  // by buffer and member
};

}  // namespace windlass::reference
