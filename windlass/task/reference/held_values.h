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
#include "windlass/task/holdings.h"

namespace windlass::reference {

// Elements of `from` copied, or added, to where `to` has them. Elements that only one of them has
// are left alone; the number of those that both have.
int64_t transfer(const Array& source, const Region& from, Array& target, const Region& to,
                 bool adds = false);
// The part `to` of an array that is the part `from`. Throws Error{Internal} if it is not all there.
Array cut(const Array& source, const Region& from, const Region& to);

class HeldValues : public Holdings {
 public:
  HeldValues(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks);

  // Arrays of a buffer: one, or one for each tensor of optimizer state. Of a share: flat.
  using Arrays = std::vector<Array>;

  bool there(BufferId id, int64_t member) const;
  // Throws Error{Internal} if it is not there.
  Arrays& at(BufferId id, int64_t member);
  void put(BufferId id, int64_t member, Arrays arrays);
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
  const TaskGraph& tasks_;
  std::map<std::pair<int32_t, int64_t>, Arrays> held_;  // by buffer and key
};

}  // namespace windlass::reference
