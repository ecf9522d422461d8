// From when to when each buffer of a simulated step lives, and what that makes of each memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "windlass/sim/simulate.h"
#include "windlass/sim/summary.h"

namespace windlass {

inline Seconds seconds(Nanoseconds time) { return Seconds(static_cast<double>(time) * 1e-9); }

// Live at every moment of [begin, end). Never: begin < 0. To the end of the step and beyond: end is
// past the makespan.
struct Life {
  Nanoseconds begin = -1;
  Nanoseconds end = -1;
  bool at(Nanoseconds time) const { return begin >= 0 && begin <= time && time < end; }
};
std::vector<Life> buffer_lives(const TaskGraph& graph, const SimResult& result);

// By buffer: whether it is kept from the forward to the backward pass. That is: stashes, and what a
// forward task of a micro-batch uses and a task after its first backward task on the same team
// still uses. Not: weights, data of the step, and what is computed or fetched again.
std::vector<bool> kept_between_passes(const TaskGraph& graph);

// The most of a memory that was in use for one thing, each at its own moment.
struct MemoryUse {
  std::array<int64_t, kBufferKinds> most{};  // bytes, by BufferKind
  int64_t kept = 0;                          // between the passes
};
// `kept`: by buffer, what counts as kept.
std::vector<MemoryUse> memory_uses(const TaskGraph& graph, const SimResult& result,
                                   const std::vector<bool>& kept);

// Live bytes from `time` on, workspace included; ascending in time, one entry a moment of change.
// The highest entry is the peak that the simulator found.
struct MemoryChange {
  Nanoseconds time = 0;
  int64_t bytes = 0;
};
std::vector<std::vector<MemoryChange>> memory_changes(const TaskGraph& graph,
                                                      const TaskTimes& times,
                                                      const SimResult& result);

// What is alive at a moment.
struct MemorySample {
  Nanoseconds time = 0;
  std::array<int64_t, kBufferKinds> by_kind{};  // bytes, by BufferKind
  int64_t workspace = 0;

  int64_t total() const;
};
// By memory, a curve of few points: the step is cut into `spans` equal spans of time, and each of
// them that something changes in has the moment with most in it. So the highest sample is the peak
// that the simulator found.
std::vector<std::vector<MemorySample>> memory_samples(const TaskGraph& graph,
                                                      const TaskTimes& times,
                                                      const SimResult& result, int64_t spans);

}  // namespace windlass
