// Whether steps of a run overlap, and what is predicted of them then.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/cli/train_flags.h"
#include "windlass/plan/step_row.h"

namespace windlass {

struct StepOverlap {
  int64_t asked = 1;                     // steps in a row
  std::optional<StepRow> row;            // none: each step by itself
  std::optional<SimulatedStep> typical;  // of a row: step_of_row()
  std::string note;                      // why there is none, though it was asked for
  Seconds alone, in_row;                 // predicted of a step by itself, and in a row on average

  // What is laid beside the measured steps.
  const SimulatedStep& predicted(const SimulatedStep& step) const {
    return typical ? *typical : step;
  }
  // A line for people; empty if nothing was asked for.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

// As --overlap-steps says, unless the plan's steps cannot, do not fit, or gain nothing.
StepOverlap plan_overlap(const TrainFlags& flags, const SimulatedStep& step, bool alone);

// Where all steps must have ended: before evaluations, checkpoints, and the end.
OverlapOptions overlap_options(const TrainFlags& flags, const StepOverlap& overlap);

}  // namespace windlass
