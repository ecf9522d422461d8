// The order of tasks that predecessors and lanes enforce.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "windlass/task/task_graph.h"

namespace windlass {

// A task's clock has, for each lane, the last task that ends before it starts. Clocks are kept as
// long as someone is going to look at them.
class HappensBefore {
 public:
  explicit HappensBefore(const TaskGraph& graph);

  // To be called for every task in the order of their ids.
  void enter(TaskId task);
  void leave(TaskId task);
  // Whether `task` ends before the one that was entered starts.
  bool before(TaskId task) const;

 private:
  using Clock = std::vector<int32_t>;
  const TaskGraph& graph_;
  Clock now_;
  TaskId current_;
  std::vector<Clock> lanes_;       // clock of the last task of each lane, itself included
  std::map<int32_t, Clock> kept_;  // of tasks with successors to come
  std::vector<int32_t> last_successor_;
};

}  // namespace windlass
