// What buffers hold in the slow executor: for each member its piece of a tensor, or its share of
// the piece.
#pragma once

#include <map>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"
#include "windlass/graph/reference/interpret.h"
#include "windlass/graph/samples.h"
#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"

namespace windlass::reference {

// The part of a tensor that a member has.
Region region_of(const Layout& layout, const Shape& shape, int64_t member);

// Elements of `from` copied, or added, to where `to` has them. Elements that only one of them has
// are left alone; the number of those that both have.
int64_t transfer(const Array& source, const Region& from, Array& target, const Region& to,
                 bool adds = false);
// The part `to` of an array that is the part `from`. Throws Error{Internal} if it is not all there.
Array cut(const Array& source, const Region& from, const Region& to);

class HeldValues {
 public:
  HeldValues(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks);

  // Arrays of a buffer: one, or one for each tensor of optimizer state. Of a share: flat.
  using Arrays = std::vector<Array>;

  const Buffer& buffer(BufferId id) const { return tasks_[id]; }
  const Layout& layout(BufferId id) const;
  void set_layout(BufferId id, Layout layout);
  const Shape& shape(TensorId id) const { return training_.graph[id].type.shape; }
  // The part of a tensor that a member has in a layout; of a micro-batch, if there are several in
  // the training graph.
  Region region(const Layout& layout, TensorId tensor, int32_t micro_batch, int64_t member) const;
  Region region(BufferId id, int64_t member) const {
    return region(layout(id), tasks_[id].tensor, tasks_[id].micro_batch, member);
  }
  const SampleAxes& samples() const { return samples_; }

  // Members of the buffer's group whose pieces it holds: those of its team.
  std::vector<int64_t> members(BufferId id) const;
  std::vector<int64_t> members(TeamId team, int32_t group) const;

  bool there(BufferId id, int64_t member) const;
  // Throws Error{Internal} if it is not there.
  Arrays& at(BufferId id, int64_t member);
  void put(BufferId id, int64_t member, Arrays arrays);
  // Where in the flat piece the member's share lies; all of it if nobody shares.
  Range share(BufferId id, int64_t member, int64_t elements) const;
  // Members for which one host buffer serves have the same key; also if it was shared out
  // otherwise.
  int64_t key(BufferId id, int64_t member) const { return key(id, member, tasks_[id].share); }
  int64_t key(BufferId id, int64_t member, int32_t share) const;

  // What a task reads: the array as the use says, and the part of the tensor it is.
  struct Seen {
    Array array;
    Region region;
    TensorId tensor;
  };
  Seen see(const Use& use, int64_t member);

  // The whole tensor from what all members hold, in all buffers given; partial results combined.
  // Throws Error{Internal} if copies differ or elements are missing.
  Array assemble(const std::vector<BufferId>& buffers, size_t array, const Shape& whole) const;

 private:
  const TrainingGraph& training_;
  const Machine& machine_;
  const TaskGraph& tasks_;
  SampleAxes samples_;  // if the training graph is of all micro-batches
  std::map<std::pair<int32_t, int64_t>, Arrays> held_;  // by buffer and key
  std::map<int32_t, Layout> changed_;                   // by buffer: by moves in place
};

}  // namespace windlass::reference
