// What a simulation says in a few numbers: where the time of each team goes, what crosses each
// link, what fills a memory at its peak.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

// The time of a team, as its compute lane sees it. Parts sum to the makespan.
//
// Time when the lane is idle before a task belongs to what the task waited for last: the
// predecessor, or the task before it on another of its lanes, that ended when it started. If all of
// them ended earlier it waited for memory: swap if a swap-out freed some of the team's then,
// otherwise bubble. Time after the last task of the lane, as long as other lanes of the team run,
// belongs to the one that ends last.
struct Breakdown {
  Nanoseconds compute = 0;        // forward and backward
  Nanoseconds recompute = 0;      // and compressing and decompressing: work that saves memory
  Nanoseconds update = 0;         // on the device; on the host if waited for
  Nanoseconds communication = 0;  // waited for, or on the compute lane itself
  Nanoseconds swap = 0;           // waited for
  Nanoseconds bubble = 0;         // idle for other reasons

  Nanoseconds total() const { return compute + recompute + update + communication + swap + bubble; }
  bool operator==(const Breakdown&) const = default;
};
// By team. A team without a compute lane has bubbles only.
std::vector<Breakdown> break_down(const TaskGraph& graph, const SimResult& result);

// Bytes that cross each direction of each physical link in the step, ascending by direction;
// directions that nothing crosses are left out. Counts tasks that ran.
std::vector<LinkLoad> link_bytes(const TaskGraph& graph, const SimResult& result);

constexpr size_t kBufferKinds = 8;

// What is alive in a memory at its peak. Kinds and workspace sum to the peak.
struct PeakComposition {
  std::array<int64_t, kBufferKinds> by_kind{};  // bytes, by BufferKind
  int64_t workspace = 0;                        // of the tasks that run then
  std::vector<BufferId> largest;                // descending by size, ties by id
};
PeakComposition compose_peak(const TaskGraph& graph, const TaskTimes& times,
                             const SimResult& result, MemoryId memory, size_t largest = 10);

}  // namespace windlass
