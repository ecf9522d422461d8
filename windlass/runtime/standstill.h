// What keeps a step from going on, for people: which tasks are under way where, and what the others
// wait for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "windlass/runtime/jobs.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/watchdog.h"

namespace windlass {

enum class JobState : uint8_t {
  Waits,  // for jobs before it
  Asks,   // for memory
  Ready,  // for its thread to take it
  UnderWay,
  Ended,
};

// A step as it stands. Refers to all of it.
struct StepState {
  const JobGraph& graph;
  const Program& program;
  const Watchdog& watchdog;
  std::vector<JobState> jobs;
  std::function<std::string(int32_t job)> label;
};

// "forward conv1, on cpu1: late: under way for 41 s, predicted 1.3 s; backward conv1, on cpu1 and
// 3 more wait for it".
std::string describe_late(const StepState& state, const Watchdog::Late& late);

// What is under way, and of those that wait the first few with what they wait for.
std::string describe_standstill(const StepState& state);

}  // namespace windlass
