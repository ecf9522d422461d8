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

// Step times, peaks, and the timeline of the step nearest to the median.
class MeasuredSteps {
 public:
  // One more step: what it took, by task from its beginning, and bytes by memory. The first step of
  // a run warms up caches and libraries, and counts only if it is the only one.
  void add(Nanoseconds time, const std::vector<Nanoseconds>& start,
           const std::vector<Nanoseconds>& end, const std::vector<int64_t>& peaks);
  bool empty() const { return times_.empty(); }
  MeasuredStep result() const;

 private:
  struct Timeline {
    std::vector<Nanoseconds> start, end;
  };
  std::vector<Nanoseconds> times_;
  std::vector<Timeline> timelines_;  // of the last ones
  std::vector<int64_t> peaks_;
  int64_t steps_ = 0;
};

struct Comparison {
  struct Kind {
    TaskKind kind = TaskKind::Forward;
    size_t tasks = 0;
    Seconds predicted = {}, measured = {};  // of all tasks of the kind together
  };
  struct Memory {
    std::string name;
    int64_t devices = 0;  // that have as much each; 0: of a host
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
