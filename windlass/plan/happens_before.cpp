#include "windlass/plan/happens_before.h"

#include <algorithm>

namespace windlass {

HappensBefore::HappensBefore(const TaskGraph& graph)
    : graph_(graph),
      lanes_(graph.lanes.size(), Clock(graph.lanes.size(), -1)),
      last_successor_(graph.size(), -1) {
  for (size_t i = 0; i < graph.size(); ++i)
    for (TaskId before : graph.predecessors_of(TaskId(i)))
      last_successor_[before.index()] = static_cast<int32_t>(i);
}

void HappensBefore::enter(TaskId task) {
  current_ = task;
  now_.assign(graph_.lanes.size(), -1);
  const auto join = [&](const Clock& clock) {
    for (size_t l = 0; l < now_.size(); ++l) now_[l] = std::max(now_[l], clock[l]);
  };
  for (LaneId lane : graph_.lanes_of(task)) join(lanes_[lane.index()]);
  for (TaskId before : graph_.predecessors_of(task)) {
    const auto found = kept_.find(before.value);
    if (found == kept_.end()) continue;
    join(found->second);
    if (last_successor_[before.index()] == task.value) kept_.erase(found);
  }
}

void HappensBefore::leave(TaskId task) {
  for (LaneId lane : graph_.lanes_of(task)) now_[lane.index()] = task.value;
  for (LaneId lane : graph_.lanes_of(task)) lanes_[lane.index()] = now_;
  if (last_successor_[task.index()] > task.value) kept_.emplace(task.value, now_);
}

bool HappensBefore::before(TaskId task) const {
  return now_[graph_.lanes_of(task)[0].index()] >= task.value;
}

}  // namespace windlass
