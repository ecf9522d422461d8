// Where parts are unequal: the sizes of what each team has.

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
  const int64_t all = largest_part(
      largest_elements(tables_.layout(content.layout), training_.graph[content.tensor].type.shape),
      parts);
  if (all == 0) return most;
  return most / all * largest_part(own(0, content.tensor, content.layout, group, team), parts);
}

}  // namespace windlass
