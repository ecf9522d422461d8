// Steps on devices that page on demand, with hardly more memory than one task needs. For tests.
#pragma once

#include <algorithm>
#include <map>

#include "windlass/task/lower.h"

namespace windlass::cases {

// The machine with less memory on its devices: what the largest task of the strategy has on one at
// the same time, times `room`, and what paging leaves for workspace.
inline Machine paged_machine(const TrainingGraph& training, const Strategy& strategy,
                             const Machine& machine, double room) {
  const TaskGraph tasks = lower(training, strategy, machine);
  int64_t most = 0, statistics = 0;
  for (const Buffer& buffer : tasks.buffers)
    if (!buffer.tensor.valid()) statistics += buffer.bytes.value;
  for (size_t i = 0; i < tasks.size(); ++i) {
    std::map<MemoryId, std::map<BufferId, int64_t>> used;
    for (const Use& use : tasks.uses_of(TaskId(i)))
      used[tasks[use.buffer].memory][use.buffer] = tasks[use.buffer].bytes.value;
    for (const auto& [memory, buffers] : used) {
      int64_t bytes = 0;
      for (const auto& [buffer, size] : buffers) bytes += size;
      if (tasks[memory].team.valid()) most = std::max(most, bytes);
    }
  }
  Machine small = machine;
  const auto wanted = static_cast<int64_t>(static_cast<double>(most) * room) + statistics;
  for (Device& device : small.devices) device.limit = Bytes(wanted * 4 / 3 + 4);
  return small;
}

}  // namespace windlass::cases
