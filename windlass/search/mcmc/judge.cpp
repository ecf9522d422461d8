#include "windlass/search/mcmc/judge.h"

#include <cmath>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr size_t kRemembered = 1 << 16;
// Of strategies that cannot be carried out.
constexpr double kNever = 0x1.0p60;

}  // namespace

StepJudge::StepJudge(const Problem& problem, const TrainingGraph& training)
    : evaluator_(problem, training), bound_(problem, training), known_(kRemembered) {}

double StepJudge::simulate(const Strategy& strategy, bool peak_wanted) {
  ++simulated_;
  try {
    const Evaluation inside = evaluator_.evaluate(strategy);
    if (inside.fits) return static_cast<double>(inside.time);
    if (!peak_wanted) return kNever;
    const Evaluation free = evaluator_.evaluate_unlimited(strategy);
    return kMisfit + static_cast<double>(free.peak);
  } catch (const Error& error) {
    // A loop with fewer turns than parts, a transfer of terabytes: not a strategy.
    if (error.kind() == ErrorKind::Internal) throw;
    return kNever;
  }
}

std::optional<double> StepJudge::energy(const Strategy& strategy, uint64_t key, double most) {
  Known& slot = known_[key % kRemembered];
  if (slot.key == key) {
    const bool decides = slot.exact || slot.energy > most;
    if (decides) {
      ++remembered_;
      if (slot.energy > most) return std::nullopt;
      return slot.energy;
    }
  }
  const bool looks_for_fit = most >= kMisfit;
  try {
    if (!looks_for_fit) {
      const auto enough = static_cast<Nanoseconds>(std::floor(most));
      const Nanoseconds least = bound_(strategy, enough);
      if (least > enough) {
        ++bounded_;
        slot = {key, static_cast<double>(least), false};
        return std::nullopt;
      }
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    slot = {key, kNever, true};
    return std::nullopt;
  }
  const double found = simulate(strategy, looks_for_fit);
  // Without the peak, all that is known of one that does not fit is that it does not.
  slot = {key, found, true};
  if (!looks_for_fit && found == kNever) slot = {key, kMisfit, false};
  if (found > most) return std::nullopt;
  return found;
}

}  // namespace windlass
