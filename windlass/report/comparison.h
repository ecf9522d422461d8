// Predicted beside measured: one step of a run laid next to its simulation.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/step.h"
#include "windlass/sim/step_record.h"

namespace windlass {

// A measured step of the same task graph.
struct MeasuredStep {
  Seconds step_time;         // median over the steps of the run but the first
  Seconds fastest, slowest;  // of those
  StepRecord record;         // of the step nearest to the median; peaks are the most of all steps
};

// Step times, peaks, and the record of the step nearest to the median.
class MeasuredSteps {
 public:
  // One more step. The first step of a run warms up caches and libraries, and counts only if it is
  // the only one.
  void add(const StepRecord& record);
  bool empty() const { return times_.empty(); }
  MeasuredStep result() const;

 private:
  std::vector<Nanoseconds> times_;
  std::vector<StepRecord> records_;  // of the last ones
  std::vector<int64_t> peaks_, device_peaks_;
  int64_t steps_ = 0;
};

struct Comparison {
  struct Kind {
    TaskKind kind = TaskKind::Forward;
    size_t tasks = 0;
    Seconds predicted = {}, measured = {};  // of all tasks of the kind together
  };
  // A device with its memory, or a host.
  struct Place {
    std::string name;
    bool host = false;
    int64_t limit = 0, predicted = 0, measured = 0;  // bytes
    // What it has a part in. Tasks of several lanes overlap.
    std::vector<Kind> kinds = {};
  };
  struct LinkUse {
    std::string name;
    int64_t predicted = 0, measured = 0;  // bytes
  };
  Seconds predicted_time, measured_time;
  std::vector<Kind> kinds;     // those that occur; of a team's tasks the device that was last
  std::vector<Place> places;   // devices that the step uses, then hosts
  std::vector<LinkUse> links;  // one for each direction
};

Comparison compare(const SimulatedStep& predicted, const MeasuredStep& measured,
                   const Machine& machine);
std::string comparison_text(const Comparison& comparison);
// {"predicted": {...}, "measured": {...}} with the same keys.
nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace windlass
