// Where the pieces of buffers lie: which members have one, which part of a tensor it is, and for
// whom one copy on a host serves. Whoever carries out a task graph walks over its tasks in the
// order of their ids and says which moves in place have changed a layout.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"
#include "windlass/graph/samples.h"
#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// The part of a tensor that a member has.
Region region_of(const Layout& layout, const Shape& shape, int64_t member);
// The place of a member among those that hold partial results of the same.
int64_t partial_place(const Layout& layout, int64_t member);
// How partial results are combined.
CombineFn partial_combine(const Layout& layout);
// Partial results of these digits have been combined.
Layout without_partial(const Layout& layout, const std::vector<MemberDigit>& digits);
// How what was moved in place lies afterwards.
Layout layout_after(const TaskGraph& tasks, const Movement& movement, const Layout& before);

// Refers to its arguments. For one thread at a time.
class Holdings {
 public:
  Holdings(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks);

  const Buffer& buffer(BufferId id) const { return tasks_[id]; }
  // Where sizes of micro-batches differ, that in this one.
  const Shape& shape(TensorId id, int32_t micro_batch = -1) const {
    return training_.of(micro_batch).graph[id].type.shape;
  }
  const Layout& layout(BufferId id) const;
  void set_layout(BufferId id, Layout layout) { changed_[id.value] = std::move(layout); }

  // The part of a tensor of a micro-batch that a member has in a layout.
  Region region(const Layout& layout, TensorId tensor, int32_t micro_batch, int64_t member) const;
  Region region(BufferId id, int64_t member) const {
    return region(layout(id), tasks_[id].tensor, tasks_[id].micro_batch, member);
  }
  const SampleAxes& samples() const { return samples_; }

  // Members of a group that a team has.
  struct Members {
    std::vector<int64_t> list;    // ascending
    std::vector<int64_t> order;   // by member of the group: its place in the list, -1: none
    std::vector<int64_t> device;  // by member of the group: its place among the team's devices

    bool contains(int64_t member) const { return order[static_cast<size_t>(member)] >= 0; }
  };
  const Members& team_members(TeamId team, int32_t group) const;
  // Of the buffer's group: those whose pieces it holds, which are those of its team.
  const Members& holders(BufferId id) const;
  const std::vector<int64_t>& members(BufferId id) const { return holders(id).list; }
  const std::vector<int64_t>& members(TeamId team, int32_t group) const {
    return team_members(team, group).list;
  }

  // Where in the flat piece the member's share lies; all of it if nobody shares.
  Range share(BufferId id, int64_t member, int64_t elements) const;
  // Members for which one host buffer serves have the same key, which is the first of them; also if
  // it was shared out otherwise.
  int64_t key(BufferId id, int64_t member) const { return key(id, member, tasks_[id].share); }
  int64_t key(BufferId id, int64_t member, int32_t share) const;

 private:
  const TrainingGraph& training_;
  const Machine& machine_;
  const TaskGraph& tasks_;
  SampleAxes samples_;                 // if the training graph is of all micro-batches
  std::map<int32_t, Layout> changed_;  // by buffer: by moves in place
  mutable std::map<std::pair<int32_t, int32_t>, Members> members_;  // by team and group
};

}  // namespace windlass
