#include <algorithm>

#include "windlass/sim/simulate.h"

namespace windlass {

std::vector<BufferId> alive_at(const TaskGraph& graph, const SimResult& result, MemoryId memory,
                               Nanoseconds time) {
  struct Life {
    bool born = false;
    bool used = false;
    bool over = true;
  };
  std::vector<Life> lives(graph.buffers.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    const bool started = result.start[i] >= 0 && result.start[i] <= time;
    const bool over = result.end[i] >= 0 && result.end[i] <= time;
    for (const Use& use : graph.uses_of(TaskId(i))) {
      Life& life = lives[use.buffer.index()];
      life.used = true;
      life.born |= started;
      life.over &= over;
    }
  }
  std::vector<BufferId> alive;
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    const Life& life = lives[i];
    if (buffer.memory != memory || !(life.born || buffer.at_start)) continue;
    if (!life.used || !life.over || buffer.at_end) alive.emplace_back(i);
  }
  std::stable_sort(alive.begin(), alive.end(),
                   [&](BufferId a, BufferId b) { return graph[a].bytes > graph[b].bytes; });
  return alive;
}

}  // namespace windlass
