// What a training step takes as a function of its batch, for one way to save memory: plain numbers
// that can be read, compared and solved for. Made from simulated steps of a few batches.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "windlass/base/units.h"

namespace windlass {

// The fullest moment of a memory while there are forward ops to come, then until the first update,
// then until the end.
enum class StepPhase : uint8_t { Forward, Backward, Optimizer };
constexpr size_t kStepPhases = 3;
const char* phase_name(StepPhase phase);
using PhasePeaks = std::array<Bytes, kStepPhases>;

// A simulated step of a batch.
struct BatchPoint {
  int64_t batch = 0;
  bool fits = false;  // if not, the rest is of the step without limits
  Seconds time;
  Bytes peak;
  PhasePeaks phases{};
  // Where a framework's host is what a step may wait for: what the host takes to hand it out, and
  // what it would take if the host took nothing; else 0.
  Seconds host = {}, device = {};
  // The p of time = (host^p + device^p)^(1/p): how much of the shorter one the longer one hides.
  double sharpness = 0;

  double rate() const { return static_cast<double>(batch) / time.value; }  // samples a second
};

// peak(b) = max over phases of intercept + slope x b. Each phase is affine where buffers grow with
// the batch or not at all; rounding of allocations and workspaces that have a most are what is
// left, and `error` says how much that is.
struct PeakModel {
  std::array<double, kStepPhases> slope{}, intercept{};  // bytes a sample, bytes
  double error = 0;  // largest relative error of the peak over the points it was made from

  double at(double batch) const;
  StepPhase phase_at(double batch) const;
  // The largest real batch whose peak is at most `memory`; infinite if it does not grow, negative
  // if nothing fits.
  double largest_batch(double memory) const;
};

// time(b) = (floor^p + (offset + slope x b)^p)^(1/p): what no batch is faster than (host work,
// kernels that are too small), then a line, and p says how sharply one becomes the other; infinite:
// time is the larger of both. Throughput tends to 1 / slope.
struct TimeModel {
  double floor = 0, offset = 0, slope = 0;  // seconds, seconds, seconds a sample
  double sharpness = 0;                     // p; 0: infinite
  double error = 0;                         // as above

  double at(double batch) const;
  // Batch at which throughput is nine tenths of what it tends to; none where it is from the start.
  std::optional<double> saturation() const;
};

// PAPAYA's own model (Liu et al., arXiv 2303.14633, and its code): least squares over profiled
// batches of this very method. memory = alpha b + beta, time = gamma b + delta, or a hinge,
// max(a, k b) + c.
struct PapayaModel {
  double alpha = 0, beta = 0;
  double gamma = 0, delta = 0;
  double a = 0, k = 0, c = 0;
  double memory_r2 = 0, linear_r2 = 0, hinge_r2 = 0;  // R2 of memory, and of throughput

  double line_at(double batch) const { return gamma * batch + delta; }
  double hinge_at(double batch) const;
  // Its rule for the largest batch: four fifths of the card.
  double largest_batch(double card) const { return (0.8 * card - beta) / alpha; }
};

struct PerformanceModel {
  PeakModel peak;
  TimeModel time;
  PapayaModel papaya;

  // The best throughput inside of a memory; 0 if not even one sample fits.
  double best_rate(double memory) const;
  // The same network `factor` times as deep: everything that grows with a layer grows with it.
  PerformanceModel deeper(double factor) const;
};

// Of at least one point, at different batches, ascending.
PerformanceModel fit_performance(const std::vector<BatchPoint>& points);
// Coefficient of determination; 1 for equal lists.
double r_squared(const std::vector<double>& measured, const std::vector<double>& predicted);

// PAPAYA's decision: bytes that a method saves for each second that it costs, a sample, against
// what the plain step has to lose. Assumes that both have the same intercepts.
struct PapayaDecision {
  double score = 0, point = 0;
  bool pays = false;
};
PapayaDecision papaya_decision(const PapayaModel& plain, const PapayaModel& method, double card);

// Where a method begins or ceases to be better than the plain step: the largest value in
// [low, high] below which it is, by bisection over the models. None: it is nowhere, or nowhere not.
struct Crossing {
  bool ever = false;            // better somewhere in the range
  std::optional<double> below;  // up to here; none: all over the range
};
Crossing memory_crossing(const PerformanceModel& plain, const PerformanceModel& method, double low,
                         double high);
// Factors of depth from which on a method is better, in a given memory.
Crossing depth_crossing(const PerformanceModel& plain, const PerformanceModel& method,
                        double memory);

}  // namespace windlass
