#include "windlass/cli/train_overlap.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

// Of the time of a step by itself: less is gained than what a prediction can tell.
constexpr double kWorthIt = 0.998;

}  // namespace

StepOverlap plan_overlap(const TrainFlags& flags, const SimulatedStep& step, bool alone) {
  StepOverlap overlap;
  overlap.asked = flags.overlap_steps;
  overlap.alone = overlap.in_row = step.step_time();
  if (flags.overlap_steps <= 1) return overlap;
  overlap.note = alone ? cannot_row(step.tasks) : "several processes train";
  if (!overlap.note.empty()) return overlap;
  StepRow row = make_row(step, static_cast<int32_t>(flags.overlap_steps));
  if (row.result.status != SimStatus::Done) {
    overlap.note = fmt::format("{} steps in a row do not fit", flags.overlap_steps);
    return overlap;
  }
  const Seconds mean = row.mean_time(step.overhead);
  if (mean.value > kWorthIt * overlap.alone.value) {
    overlap.note = fmt::format("a step takes {} in a row as well", format_seconds(mean));
    return overlap;
  }
  overlap.in_row = mean;
  overlap.typical = step_of_row(step, row);
  overlap.row = std::move(row);
  return overlap;
}

std::string StepOverlap::text() const {
  if (asked <= 1) return {};
  if (!row) return fmt::format("steps do not overlap: {}", note);
  return fmt::format("steps overlap: in rows of {}, predicted {} a step instead of {}", asked,
                     format_seconds(in_row), format_seconds(alone));
}

nlohmann::ordered_json StepOverlap::json() const {
  nlohmann::ordered_json json = {{"steps", row ? asked : 1},
                                 {"predicted_step_time_s", in_row.value},
                                 {"predicted_alone_s", alone.value}};
  if (!row) json["note"] = note;
  return json;
}

OverlapOptions overlap_options(const TrainFlags& flags, const StepOverlap& overlap) {
  if (!overlap.row) return {};
  const auto at = [](int64_t step, int64_t every) { return every > 0 && step % every == 0; };
  return {.row = &*overlap.row, .barrier_after = [&flags, at](int64_t step) {
            return step == flags.steps || at(step, flags.evaluate_every) ||
                   (!flags.checkpoints.empty() && at(step, flags.checkpoint_every));
          }};
}

}  // namespace windlass
