#include "windlass/search/mcmc/judge.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr size_t kRemembered = 1 << 16;
// Of strategies that cannot be carried out.
constexpr double kNever = 0x1.0p60;

}  // namespace

StepJudge::StepJudge(const Problem& problem, const TrainingGraph& training)
    : evaluator_(problem, training), known_(kRemembered) {}

// Its energy, or none if a bound shows that it is above `most`.
std::optional<double> StepJudge::simulate(const Strategy& strategy, double most) {
  try {
    if (most < kMisfit) {
      const int64_t walked = evaluator_.walked();
      const auto inside =
          evaluator_.evaluate_below(strategy, static_cast<Nanoseconds>(std::floor(most)));
      if (!inside) return std::nullopt;
      if (evaluator_.walked() == walked) ++simulated_;
      return inside->fits ? static_cast<double>(inside->time) : kNever;
    }
    ++simulated_;
    const Evaluation inside = evaluator_.evaluate(strategy);
    if (inside.fits) return static_cast<double>(inside.time);
    // The least limit takes many simulations, the peak one.
    if (evaluator_.tasks() < kFewTasks)
      if (const auto least = evaluator_.least_limit(strategy))
        return kMisfit + static_cast<double>(*least);
    return kMisfit + static_cast<double>(evaluator_.evaluate_unlimited(strategy).peak);
  } catch (const Error& error) {
    // A loop with fewer turns than parts, a transfer of terabytes: not a strategy.
    if (error.kind() == ErrorKind::Internal) throw;
    return kNever;
  }
}

std::optional<double> StepJudge::energy(const Strategy& strategy, uint64_t key, double most) {
  Known& slot = known_[key % kRemembered];
  if (slot.key == key && (slot.exact || slot.energy > most)) {
    ++remembered_;
    if (slot.energy > most) return std::nullopt;
    return slot.energy;
  }
  const std::optional<double> found = simulate(strategy, most);
  if (!found) {
    ++bounded_;
    const auto least = static_cast<double>(evaluator_.least());
    slot = {key, std::max(least, std::nextafter(most, kNever)), false};
    return std::nullopt;
  }
  slot = {key, *found, true};
  // Without the peak, all that is known of one that does not fit is that it does not.
  if (most < kMisfit && *found == kNever) slot = {key, kMisfit, false};
  if (*found > most) return std::nullopt;
  return found;
}

}  // namespace windlass
