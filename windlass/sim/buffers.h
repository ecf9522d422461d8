// The live bytes of every memory while a task graph runs, their peaks and their limits.
//
// A buffer counts the uses that have not ended yet: it comes to life with the first task that
// starts, and dies when the count falls to zero. One that outlives the step counts one more.
// Nearly all buffers that a task uses are in its own memory, that of its lane's team: their bytes
// are added up apart, so that the sums do not wait for one another. Which buffers tasks use is
// copied beside: a quarter of what a graph says of their uses, and read twice.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

class LiveBuffers {
 public:
  // Sets `peaks` to the state at the start; later peaks go there too.
  void reset(const TaskGraph& graph, bool enforce_limits, std::vector<MemoryPeak>& peaks);

  // The memory of the lane's team, or one without limit if it has none.
  MemoryId memory_of(const TaskGraph& graph, const Lane& lane) const {
    return lane.team.valid() ? graph[lane.team].memory : MemoryId(memories_.size() - 1);
  }

  // The first memory that the state at the start is too large for, or none.
  MemoryId too_small_at_start() const;

  // Brings to life what a task uses, and its workspace. If a memory is too small, nothing changes
  // and that memory is returned; the task cannot start before something is released there, since
  // whoever else brings one of its buffers to life takes the same bytes.
  MemoryId start(TaskId task, MemoryId own, int64_t workspace, Nanoseconds now);
  void end(TaskId task, MemoryId own, int64_t workspace, Nanoseconds now);

  // The buffers that the uses [begin, end) of the graph are of.
  std::span<const uint32_t> used(uint32_t begin, uint32_t end) const {
    return {used_.data() + begin, used_.data() + end};
  }
  // Brings what is known of a buffer into the cache. Inlined, since compilers drop calls of
  // functions that only prefetch.
  [[gnu::always_inline]] void fetch(uint32_t buffer) const {
    __builtin_prefetch(buffers_.data() + buffer);
  }

  // Whether something was released at this moment.
  bool released(MemoryId memory, Nanoseconds now) const {
    return memories_[memory.index()].released == now;
  }

  // The first memory that is too small for a task, and the bytes beyond its limit.
  std::pair<MemoryId, int64_t> missing(TaskId task, MemoryId own, int64_t workspace) const;

 private:
  struct State {
    int64_t live = 0;
    int64_t limit = 0;
    int64_t peak = 0;
    Nanoseconds released = -1;
  };
  struct BufferState {
    int64_t bytes = 0;
    MemoryId memory;
    int32_t uses_left = 0;  // with kUnborn
  };
  static constexpr int32_t kUnborn = INT32_MIN;

  std::span<const uint32_t> used_by(TaskId task) const {
    return used((*use_begin_)[task.index()], (*use_begin_)[task.index() + 1]);
  }
  void undo(std::span<const uint32_t> births, MemoryId own);
  void note_peak(MemoryId memory, TaskId task, Nanoseconds now);

  std::vector<MemoryPeak>* peaks_ = nullptr;
  std::vector<State> memories_;  // and one more, for lanes without
  std::vector<BufferState> buffers_;
  std::vector<uint32_t> used_;                        // by use of the graph: its buffer
  const std::vector<uint32_t>* use_begin_ = nullptr;  // of the graph
  std::vector<uint32_t> born_;  // room for the buffers that come to life with a task
};

inline MemoryId LiveBuffers::start(TaskId task, MemoryId own, int64_t workspace, Nanoseconds now) {
  const std::span<const uint32_t> uses = used_by(task);
  int64_t taken = workspace;
  MemoryId full;
  bool elsewhere = false;
  if (born_.size() < uses.size()) born_.resize(uses.size());
  uint32_t* born = born_.data();
  for (uint32_t id : uses) {
    BufferState& buffer = buffers_[id];
    if (buffer.uses_left >= 0) continue;
    buffer.uses_left ^= kUnborn;
    *born++ = id;
    if (buffer.memory == own) {
      taken += buffer.bytes;
    } else {
      elsewhere = true;
      State& state = memories_[buffer.memory.index()];
      state.live += buffer.bytes;
      if (state.live > state.limit) full = buffer.memory;
    }
  }
  State& state = memories_[own.index()];
  if (taken > state.limit - state.live) full = own;
  const std::span<const uint32_t> births(born_.data(), born);
  if (full.valid()) {
    undo(births, own);
    return full;
  }
  state.live += taken;
  if (state.live > state.peak) note_peak(own, task, now);
  if (elsewhere)
    for (uint32_t id : births) note_peak(buffers_[id].memory, task, now);
  return {};
}

inline void LiveBuffers::end(TaskId task, MemoryId own, int64_t workspace, Nanoseconds now) {
  int64_t given = workspace;
  for (uint32_t id : used_by(task)) {
    BufferState& buffer = buffers_[id];
    // Which use is the last cannot be guessed by the processor: a mask, no branch.
    const int64_t last = -static_cast<int64_t>(--buffer.uses_left == 0);
    const int64_t freed = buffer.bytes & last;
    if (buffer.memory == own) {
      given += freed;
    } else if (freed > 0) {
      memories_[buffer.memory.index()].live -= freed;
      memories_[buffer.memory.index()].released = now;
    }
  }
  State& state = memories_[own.index()];
  state.live -= given;
  state.released = given > 0 ? now : state.released;
}

}  // namespace windlass
