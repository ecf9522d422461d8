// Evaluates strategy after strategy for one training graph: lower, price, simulate.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "windlass/search/bounds/step_bound.h"
#include "windlass/search/search.h"
#include "windlass/task/lower.h"

namespace windlass {

struct Evaluation {
  bool fits = false;
  Nanoseconds time = 0;       // of the step if it fits
  Nanoseconds free_time = 0;  // without limits, if that was asked for
  int64_t peak = 0;           // of the fullest device
  bool hosts_fit = false;     // what is on hosts, without limits of devices
  // If it does not fit: bytes that a memory lacks, and whether that is a host's.
  int64_t missing = 0;
  bool host_lacks = false;
};

// A step of so many nanoseconds of tasks, with what it takes on the host beside them.
Seconds step_time(const Problem& problem, Nanoseconds makespan);
// By how much the host takes less because some devices do not take part.
Nanoseconds spared_on_host(const Problem& problem, const Strategy& strategy);

// What is live when a step begins: no action on saved tensors helps if it does not fit.
struct BytesAtStart {
  struct Place {
    int64_t bytes = 0;
    std::vector<DeviceId> devices;  // of each of these; none: of a host, of
    int64_t host_limit = 0;
  };
  std::vector<Place> places;
  bool fit(const Machine& machine, const Strategy& strategy) const;
};

class Evaluator {
 public:
  // `training` is of one micro-batch. Both must outlive the evaluator.
  Evaluator(const Problem& problem, const TrainingGraph& training);

  Evaluation evaluate(const Strategy& strategy);
  // The same without the peak; none where a bound shows that the step takes longer than `most` or
  // does not fit. Then, and where the bound is the time itself, nothing is simulated.
  std::optional<Evaluation> evaluate_below(const Strategy& strategy, Nanoseconds most);
  // A lower bound on the time of the step, whatever the limits.
  Nanoseconds bound(const Strategy& strategy) { return bound_(strategy, kLongest); }
  // Whether what is kept, or weights and optimizer state alone, is surely too large for some
  // device.
  bool too_large(const Strategy& strategy) { return bound_.too_large(strategy); }
  bool never_fits(const Strategy& strategy) { return bound_.never_fits(strategy); }
  // As if memory were no matter: the step always fits.
  Evaluation evaluate_unlimited(const Strategy& strategy);
  // The same, with the whole simulation. Valid until the next strategy.
  struct Run {
    const TaskGraph& tasks;
    const TaskTimes& times;
    const SimResult& result;
  };
  Run run_unlimited(const Strategy& strategy);
  // The least limit of all devices at which the strategy runs, exact to the byte; none if it does
  // not run at any (a host is too small). By bisection between what is live at the start and the
  // peak without limits.
  std::optional<int64_t> least_limit(const Strategy& strategy);
  // Bytes on the fullest device that no limit can be below: what is live when the step begins.
  int64_t standing(const Strategy& strategy);

  // Of the strategy that was evaluated last: what is there when the step begins.
  BytesAtStart at_start() const;

  // Time of each task of the plain strategy's forward ops.
  const std::vector<Nanoseconds>& forward_times(const Strategy& plain);
  int64_t evaluations() const { return evaluations_; }
  // What all of it came to, in the units of effort.h.
  int64_t units() const { return units_; }
  // What others have spent for it.
  void charge(int64_t units) { units_ += units; }
  // What evaluate_below() found the step to take at least, when it last returned none on account of
  // that; 0 if it did not fit.
  Nanoseconds least() const { return least_; }
  // Steps whose bound was exact and below `most`.
  int64_t walked() const { return walked_; }
  // Of the strategy that was evaluated last.
  size_t tasks() const { return tasks_->size(); }

 private:
  static constexpr Nanoseconds kLongest = Nanoseconds{1} << 60;
  Evaluation simulate(const Strategy& strategy, bool limits);
  const TaskTimes& prepare(const Strategy& strategy);

  const Problem& problem_;
  const TrainingGraph& training_;
  Lowering lowering_;
  TaskPricer pricer_;
  Simulator simulator_;
  StepBound bound_;
  const TaskGraph* tasks_ = nullptr;
  TaskTimes times_;
  std::vector<Nanoseconds> forward_times_;
  int64_t evaluations_ = 0, walked_ = 0, units_ = 0;
  Nanoseconds least_ = 0;
};

}  // namespace windlass
