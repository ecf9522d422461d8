// What steps in a row take and hold, read off their timeline: the other way to what
// sim/recurrence.h finds while simulating. For checks.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/sim/simulate.h"
#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

struct LongRun {
  // Between a task late in a step and the same one a step later, and whether it is so of all tasks.
  double seconds = 0;
  bool periodic = false;
  std::vector<int64_t> peaks;  // by memory
};

// Steps that a timeline needs for that: those at its end miss what would follow.
constexpr int32_t kLongRunSteps = 14;

// Of so many steps, or of one whose strategy has no others beside it.
LongRun read_long_run(const PackSteps& steps, const SimResult& result);

}  // namespace windlass
