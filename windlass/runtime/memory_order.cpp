#include "windlass/runtime/memory_order.h"

#include <algorithm>
#include <numeric>

#include "windlass/base/error.h"

namespace windlass {

MemoryOrder memory_order(const TaskGraph& tasks, const TaskTimes& times, const SimResult& result) {
  ensure(result.status == SimStatus::Done, "a step that does not end has no order");
  const size_t count = tasks.size();
  MemoryOrder order;
  order.grants.resize(count);
  order.releases.resize(count);
  order.uses.assign(tasks.buffers.size(), 0);
  order.release_rank.assign(tasks.buffers.size(), 0);
  order.at_start.assign(tasks.memories.size(), 0);
  for (const MemoryPeak& peak : result.peaks) {
    order.cap.push_back(peak.bytes);
    order.peak_task.push_back(peak.task);
  }
  order.held_by.resize(tasks.buffers.size());

  std::vector<bool> alive(tasks.buffers.size());
  for (size_t i = 0; i < tasks.buffers.size(); ++i) {
    const Buffer& buffer = tasks.buffers[i];
    alive[i] = buffer.at_start;
    if (buffer.at_start) order.at_start[buffer.memory.index()] += buffer.bytes.value;
  }

  std::vector<size_t> starts(count);
  std::iota(starts.begin(), starts.end(), size_t{0});
  std::ranges::stable_sort(starts, {}, [&](size_t i) { return result.start[i]; });

  // Grants: who brings what to life, in the order of starts.
  std::vector<int32_t> granted(tasks.memories.size(), 0);
  std::vector<std::vector<Nanoseconds>> grant_times(tasks.memories.size());
  for (size_t i : starts) {
    std::vector<MemoryGrant>& list = order.grants[i];
    const auto in = [&](MemoryId memory) -> MemoryGrant& {
      const auto found = std::ranges::find(list, memory, &MemoryGrant::memory);
      if (found != list.end()) return *found;
      return list.emplace_back(MemoryGrant{.memory = memory});
    };
    std::vector<BufferId> used;
    for (const Use& use : tasks.uses_of(TaskId(i))) used.push_back(use.buffer);
    std::ranges::sort(used);
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (BufferId buffer : used) {
      ++order.uses[buffer.index()];
      if (!tasks[buffer].at_end) order.releases[i].push_back(buffer);
      if (alive[buffer.index()]) continue;
      alive[buffer.index()] = true;
      in(tasks[buffer].memory).bytes += tasks[buffer].bytes.value;
    }
    if (times.workspace[i] > 0) {
      const Lane& lane = tasks[tasks.lanes_of(TaskId(i)).front()];
      in(tasks[lane.team].memory).workspace = times.workspace[i];
    }
    for (MemoryGrant& grant : list) {
      grant.rank = granted[grant.memory.index()]++;
      grant_times[grant.memory.index()].push_back(result.start[i]);
    }
  }

  // Releases: after all grants that started earlier. At one moment, what ends is released first.
  std::vector<Nanoseconds> last_end(tasks.buffers.size(), -1);
  for (size_t i = 0; i < count; ++i)
    for (const Use& use : tasks.uses_of(TaskId(i)))
      last_end[use.buffer.index()] = std::max(last_end[use.buffer.index()], result.end[i]);
  for (size_t i = 0; i < tasks.buffers.size(); ++i) {
    const auto& earlier = grant_times[tasks.buffers[i].memory.index()];
    order.release_rank[i] =
        static_cast<int32_t>(std::ranges::lower_bound(earlier, last_end[i]) - earlier.begin());
    const TaskId peak = order.peak_task[tasks.buffers[i].memory.index()];
    if (peak.valid() && last_end[i] > result.start[peak.index()]) order.held_by[i] = peak;
  }
  return order;
}

}  // namespace windlass
