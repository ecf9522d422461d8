// Predicted beside measured: one step of a run laid next to its simulation.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/step.h"

namespace windlass {

// A measured step of the same task graph.
struct MeasuredStep {
  Seconds step_time;                    // median over the steps of the run but the first
  Seconds fastest, slowest;             // of those
  std::vector<Nanoseconds> start, end;  // by task, of the step nearest to the median
  std::vector<int64_t> peaks;           // by memory, most of all steps
};

struct Comparison {
  struct Kind {
    TaskKind kind = TaskKind::Forward;
    size_t tasks = 0;
    Seconds predicted = {}, measured = {};  // of all tasks of the kind together
  };
  struct Memory {
    std::string name;
    int64_t limit = 0, predicted = 0, measured = 0;
  };
  Seconds predicted_time, measured_time;
  std::vector<Kind> kinds;  // those that occur
  std::vector<Memory> memories;
};

Comparison compare(const SimulatedStep& predicted, const MeasuredStep& measured);
std::string comparison_text(const Comparison& comparison);
// {"predicted": {...}, "measured": {...}} with the same keys.
nlohmann::ordered_json comparison_json(const Comparison& comparison);

// The step as it was measured, for the trace.
SimulatedStep as_step(const SimulatedStep& predicted, const MeasuredStep& measured);

}  // namespace windlass
