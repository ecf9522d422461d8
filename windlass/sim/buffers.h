// The live bytes of every memory while a task graph runs, their peaks and their limits.
//
// A buffer counts the uses that have not ended yet: it comes to life with the first task that
// starts, and dies when the count falls to zero. One that outlives the step counts one more.
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

  // The first memory that the state at the start is too large for, or none.
  MemoryId too_small_at_start() const;

  // Brings to life what a task uses, and its workspace. If a memory is too small, nothing changes
  // and that memory is returned; the task cannot start before something is released there, since
  // whoever else brings one of its buffers to life takes the same bytes.
  MemoryId start(TaskId task, std::span<const Use> uses, MemoryId workspace_in, int64_t workspace,
                 Nanoseconds now);
  void end(std::span<const Use> uses, MemoryId workspace_in, int64_t workspace, Nanoseconds now);

  // Whether something was released at this moment.
  bool released(MemoryId memory, Nanoseconds now) const {
    return memories_[memory.index()].released == now;
  }

  // The first memory that is too small for a task, and the bytes beyond its limit.
  std::pair<MemoryId, int64_t> missing(std::span<const Use> uses, MemoryId workspace_in,
                                       int64_t workspace) const;

 private:
  struct State {
    int64_t live = 0;
    int64_t limit = 0;
    int64_t peak = 0;
    Nanoseconds released = -1;
  };
  struct BufferState {
    int64_t bytes = 0;
    uint32_t memory = 0;
    uint32_t uses_left = 0;  // with kAlive
  };
  static constexpr uint32_t kAlive = uint32_t{1} << 31;

  State& memory_of(MemoryId id) { return id.valid() ? memories_[id.index()] : memories_.back(); }
  void note_peak(size_t memory, TaskId task, Nanoseconds now);

  std::vector<MemoryPeak>* peaks_ = nullptr;
  std::vector<State> memories_;  // and one more, for lanes without
  std::vector<BufferState> buffers_;
  std::vector<uint32_t> born_;  // buffers that come to life with the task that starts
};

}  // namespace windlass
