#include "windlass/sim/buffers.h"

#include <algorithm>
#include <limits>

namespace windlass {

void LiveBuffers::reset(const TaskGraph& graph, bool enforce_limits,
                        std::vector<MemoryPeak>& peaks) {
  peaks_ = &peaks;
  const size_t count = graph.memories.size();
  memories_.assign(count + 1, {});
  for (size_t i = 0; i < count; ++i) {
    memories_[i].limit =
        enforce_limits ? graph.memories[i].limit.value : std::numeric_limits<int64_t>::max();
  }
  memories_.back().limit = memories_.back().peak = std::numeric_limits<int64_t>::max();
  buffers_.resize(graph.buffers.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    buffers_[i] = {buffer.bytes.value, buffer.memory,
                   (buffer.at_end ? 1 : 0) | (buffer.at_start ? 0 : kUnborn)};
    if (buffer.at_start) memories_[buffer.memory.index()].live += buffer.bytes.value;
  }
  use_begin_ = &graph.use_begin;
  used_.resize(graph.uses.size());
  for (size_t i = 0; i < used_.size(); ++i) {
    used_[i] = static_cast<uint32_t>(graph.uses[i].buffer.value);
    ++buffers_[used_[i]].uses_left;
  }
  peaks.assign(count, {});
  for (size_t i = 0; i < count; ++i) peaks[i].bytes = memories_[i].peak = memories_[i].live;
}

MemoryId LiveBuffers::too_small_at_start() const {
  for (size_t i = 0; i < memories_.size(); ++i)
    if (memories_[i].live > memories_[i].limit) return MemoryId(i);
  return {};
}

void LiveBuffers::note_peak(MemoryId memory, TaskId task, Nanoseconds now) {
  State& state = memories_[memory.index()];
  if (state.live <= state.peak) return;
  state.peak = state.live;
  (*peaks_)[memory.index()] = {state.live, now, task};
}

void LiveBuffers::undo(std::span<const uint32_t> births, MemoryId own) {
  for (uint32_t id : births) {
    BufferState& buffer = buffers_[id];
    buffer.uses_left ^= kUnborn;
    if (buffer.memory != own) memories_[buffer.memory.index()].live -= buffer.bytes;
  }
}

std::pair<MemoryId, int64_t> LiveBuffers::missing(TaskId task, MemoryId own,
                                                  int64_t workspace) const {
  std::vector<int64_t> wanted(memories_.size(), 0);
  std::vector<uint32_t> counted;
  for (uint32_t id : used_by(task)) {
    const BufferState& buffer = buffers_[id];
    if (buffer.uses_left >= 0) continue;
    if (std::find(counted.begin(), counted.end(), id) != counted.end()) continue;
    counted.push_back(id);
    wanted[buffer.memory.index()] += buffer.bytes;
  }
  wanted[own.index()] += workspace;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t excess = memories_[i].live + wanted[i] - memories_[i].limit;
    if (excess > 0) return {MemoryId(i), excess};
  }
  return {};
}

}  // namespace windlass
