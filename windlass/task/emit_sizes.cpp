// Where parts or micro-batches are unequal: the sizes of what each team has.

#include "windlass/task/emitter.h"

namespace windlass {

// Of buffers that hold their tensor in its own type.
void Emitter::fit_buffers(BufferId first, int32_t group) {
  for (size_t k = 0; k < teams(group).teams.size(); ++k) {
    Buffer& buffer = graph_.buffers[first.index() + k];
    if (!tables_.unequal(buffer.layout)) return;
    buffer.bytes = allocated(bytes(buffer.tensor, own(0, buffer.tensor, buffer.layout, group, k)));
  }
}

int64_t Emitter::own_bytes(int64_t most, const Content& content, int32_t group, size_t team) {
  if (!unequal_ || content.layout < 0 || !tables_.unequal(content.layout)) return most;
  const int64_t parts = tables_.members(content.share);
  const Shape& shape = tables_.sized().graph[content.tensor].type.shape;
  const int64_t all = largest_part(largest_elements(tables_.layout(content.layout), shape), parts);
  if (all == 0) return most;
  return most / all * largest_part(own(0, content.tensor, content.layout, group, team), parts);
}

// A constant that has samples is there once for each size of micro-batches: named after the first
// of them.
int32_t Emitter::batch_of_fixed(TensorId tensor) const {
  if (&tables_.sized() == &training_ ||
      tables_.sized().graph[tensor].type == training_.graph[tensor].type)
    return 0;
  return static_cast<int32_t>(training_.unequal->batch.samples % training_.unequal->count);
}

}  // namespace windlass
