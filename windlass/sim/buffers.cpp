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
    buffers_[i] = {buffer.bytes.value, static_cast<uint32_t>(buffer.memory.value),
                   (buffer.at_end ? 1u : 0u) | (buffer.at_start ? kAlive : 0u)};
    if (buffer.at_start) memories_[buffer.memory.index()].live += buffer.bytes.value;
  }
  for (const Use& use : graph.uses) ++buffers_[use.buffer.index()].uses_left;
  peaks.assign(count, {});
  for (size_t i = 0; i < count; ++i) peaks[i].bytes = memories_[i].peak = memories_[i].live;
}

MemoryId LiveBuffers::too_small_at_start() const {
  for (size_t i = 0; i < memories_.size(); ++i)
    if (memories_[i].live > memories_[i].limit) return MemoryId(i);
  return {};
}

void LiveBuffers::note_peak(size_t memory, TaskId task, Nanoseconds now) {
  State& state = memories_[memory];
  if (state.live <= state.peak) return;
  state.peak = state.live;
  (*peaks_)[memory] = {state.live, now, task};
}

MemoryId LiveBuffers::start(TaskId task, std::span<const Use> uses, MemoryId workspace_in,
                            int64_t workspace, Nanoseconds now) {
  born_.clear();
  MemoryId full;
  for (const Use& use : uses) {
    BufferState& buffer = buffers_[use.buffer.index()];
    if (buffer.uses_left & kAlive) continue;
    buffer.uses_left |= kAlive;
    born_.push_back(static_cast<uint32_t>(use.buffer.value));
    State& state = memories_[buffer.memory];
    state.live += buffer.bytes;
    if (state.live > state.limit) {
      full = MemoryId(size_t{buffer.memory});
      break;
    }
  }
  State& working = memory_of(workspace_in);
  if (workspace > working.limit - working.live) full = workspace_in;
  if (full.valid()) {
    for (uint32_t id : born_) {
      buffers_[id].uses_left &= ~kAlive;
      memories_[buffers_[id].memory].live -= buffers_[id].bytes;
    }
    return full;
  }
  working.live += workspace;
  if (working.live > working.peak) note_peak(workspace_in.index(), task, now);
  for (uint32_t id : born_) note_peak(buffers_[id].memory, task, now);
  return {};
}

void LiveBuffers::end(std::span<const Use> uses, MemoryId workspace_in, int64_t workspace,
                      Nanoseconds now) {
  for (const Use& use : uses) {
    // Which use is the last cannot be guessed by the processor: masks instead of branches.
    BufferState& buffer = buffers_[use.buffer.index()];
    const int64_t last = -static_cast<int64_t>(--buffer.uses_left == kAlive);
    State& state = memories_[buffer.memory];
    state.live -= buffer.bytes & last;
    state.released = (now & last) | (state.released & ~last);
  }
  State& working = memory_of(workspace_in);
  working.live -= workspace;
  working.released = workspace > 0 ? now : working.released;
}

std::pair<MemoryId, int64_t> LiveBuffers::missing(std::span<const Use> uses, MemoryId workspace_in,
                                                  int64_t workspace) const {
  std::vector<int64_t> wanted(memories_.size(), 0);
  std::vector<BufferId> counted;
  for (const Use& use : uses) {
    const BufferState& buffer = buffers_[use.buffer.index()];
    if (buffer.uses_left & kAlive) continue;
    if (std::find(counted.begin(), counted.end(), use.buffer) != counted.end()) continue;
    counted.push_back(use.buffer);
    wanted[buffer.memory] += buffer.bytes;
  }
  if (workspace_in.valid()) wanted[workspace_in.index()] += workspace;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t excess = memories_[i].live + wanted[i] - memories_[i].limit;
    if (excess > 0) return {MemoryId(i), excess};
  }
  return {};
}

}  // namespace windlass
