#include "windlass/plan/method_advice.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace windlass {
namespace {

std::string percent_of(double share) { return fmt::format("{:.0f} %", 100 * share); }

// Why a method does not reach the throughput of plain training.
std::string why_not(const MethodAdvice& advice, const MethodAdvice& plain) {
  const MethodCurve& curve = advice.curve;
  if (!curve.largest) return "not even one sample fits with it";
  const int64_t plain_largest = plain.curve.largest.value_or(0);
  if (plain.curve.capped) return "plain training fits every batch that was tried";
  if (*curve.largest <= plain_largest) {
    std::string why = "it does not let a larger batch fit";
    if (advice.saved.value <= 0 && curve.model) {
      const StepPhase phase = curve.model->peak.phase_at(static_cast<double>(*curve.largest));
      why += fmt::format(
          ": the peak lies in the {}, which it leaves as it is",
          phase == StepPhase::Optimizer ? "update" : std::string(phase_name(phase)) + " pass");
    }
    return why;
  }
  const BatchPoint& best = *curve.best();
  const BatchPoint& usual = *plain.curve.best();
  if (best.batch == usual.batch && advice.gain >= 1)
    return fmt::format("no larger batch is faster than plain training with {}", usual.batch);
  std::string why;
  if (advice.slower > 1)
    why = fmt::format("a step takes {} longer with it, and ", percent_of(advice.slower - 1));
  why += fmt::format("{} samples instead of {} do not win that back", best.batch, usual.batch);
  if (plain.curve.model)
    if (const auto full = plain.curve.model->time.saturation();
        !full || *full <= static_cast<double>(usual.batch))
      why += ": the device is full already";
  return why;
}

void compare(MethodAdvice& advice, const MethodAdvice& plain, double limit, double card) {
  const MethodCurve& curve = advice.curve;
  for (const BatchPoint& point : curve.points) {
    const BatchPoint* usual = plain.curve.at(point.batch);
    if (usual == nullptr || (advice.compared_at && !usual->fits)) continue;
    advice.compared_at = point.batch;
    advice.slower = point.time / usual->time;
    advice.saved = usual->peak - point.peak;
    const double seconds = point.time.value - usual->time.value;
    advice.seconds_per_byte = advice.saved.value > 0
                                  ? std::max(0.0, seconds) / static_cast<double>(advice.saved.value)
                                  : 0;
  }
  const BatchPoint* best = curve.best();
  const BatchPoint* usual = plain.curve.best();
  // What is equal to the last digits is no gain.
  constexpr double kTie = 1e-6;
  constexpr double kClear = 1.02;
  if (best != nullptr && usual != nullptr) {
    advice.gain = best->rate() / usual->rate();
    advice.pays = advice.gain > 1 + kTie;
    if (advice.pays)
      advice.because = fmt::format(
          "{} samples fit instead of {}, and {} of them a step are {:.2f} "
          "times as fast as plain training at best{}",
          *curve.largest, *plain.curve.largest, best->batch, advice.gain,
          advice.gain < kClear ? ", which is no clear gain" : "");
  } else if (best != nullptr) {
    advice.pays = true;
    advice.because =
        fmt::format("plain training does not fit; {} samples do with it", *curve.largest);
  }
  if (!advice.pays) advice.because = why_not(advice, plain);
  if (!curve.model || !plain.curve.model) return;
  const PerformanceModel& own = *curve.model;
  const PerformanceModel& other = *plain.curve.model;
  if (usual != nullptr) {
    // b / time(b) = the best of plain.
    const double wanted = usual->rate();
    double low = 1, high = 1e9;
    const auto faster = [&](double b) { return b / own.time.at(b) > wanted * (1 + kTie); };
    if (faster(high)) {
      for (int i = 0; i < 100; ++i) {
        const double middle = std::sqrt(low * high);
        (faster(middle) ? high : low) = middle;
      }
      advice.from_batch = faster(1) ? 1 : high;
    }
  }
  constexpr double kRange = 256;
  advice.memory = memory_crossing(other, own, limit / kRange, limit * kRange);
  advice.depth = depth_crossing(other, own, limit);
  advice.papaya = papaya_decision(other.papaya, own.papaya, card);
}

}  // namespace

const BatchPoint* MethodCurve::best() const {
  const BatchPoint* found = nullptr;
  for (const BatchPoint& point : points)
    if (point.fits && (found == nullptr || point.rate() > found->rate())) found = &point;
  return found;
}

const BatchPoint* MethodCurve::at(int64_t batch) const {
  const auto found = std::ranges::find(points, batch, &BatchPoint::batch);
  return found == points.end() ? nullptr : &*found;
}

std::vector<MethodAdvice> advise_methods(std::vector<MethodCurve> curves, Bytes limit, Bytes card) {
  std::vector<MethodAdvice> result;
  for (MethodCurve& curve : curves) {
    MethodAdvice advice;
    advice.curve = std::move(curve);
    if (!advice.curve.points.empty() && advice.curve.made_of.empty())
      advice.curve.model = fit_performance(advice.curve.points);
    if (!advice.curve.impossible.empty())
      advice.because = advice.curve.impossible;
    else if (!result.empty())
      compare(advice, result.front(), static_cast<double>(limit.value),
              static_cast<double>(card.value));
    result.push_back(std::move(advice));
  }
  return result;
}

}  // namespace windlass
