#include "windlass/plan/performance_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "windlass/base/error.h"

namespace windlass {
namespace {

struct Line {
  double slope = 0, intercept = 0;
  double at(double x) const { return intercept + slope * x; }
};

// Weighted least squares; a constant through a single point, or through points of one x.
Line fit_line(const std::vector<double>& x, const std::vector<double>& y,
              const std::vector<double>& weight) {
  double w = 0, wx = 0, wy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    w += weight[i];
    wx += weight[i] * x[i];
    wy += weight[i] * y[i];
  }
  const double mean_x = wx / w, mean_y = wy / w;
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += weight[i] * (x[i] - mean_x) * (x[i] - mean_x);
    xy += weight[i] * (x[i] - mean_x) * (y[i] - mean_y);
  }
  const double slope = xx > 0 ? xy / xx : 0;
  return {slope, mean_y - slope * mean_x};
}

// So that errors count relative to the value.
std::vector<double> relative_weights(const std::vector<double>& y) {
  std::vector<double> weights;
  for (double value : y) weights.push_back(1 / std::max(1e-300, value * value));
  return weights;
}

struct Columns {
  std::vector<double> batch, time, peak, rate;
  std::array<std::vector<double>, kStepPhases> phases;
};

Columns columns_of(const std::vector<BatchPoint>& points) {
  Columns columns;
  for (const BatchPoint& point : points) {
    columns.batch.push_back(static_cast<double>(point.batch));
    columns.time.push_back(point.time.value);
    columns.peak.push_back(static_cast<double>(point.peak.value));
    columns.rate.push_back(point.rate());
    for (size_t p = 0; p < kStepPhases; ++p)
      columns.phases[p].push_back(static_cast<double>(point.phases[p].value));
  }
  return columns;
}

double largest_error(const std::vector<double>& x, const std::vector<double>& y,
                     const std::function<double(double)>& model) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i)
    most = std::max(most, std::abs(model(x[i]) - y[i]) / std::max(1e-300, y[i]));
  return most;
}

PeakModel fit_peak(const Columns& columns) {
  PeakModel model;
  for (size_t p = 0; p < kStepPhases; ++p) {
    const Line line =
        fit_line(columns.batch, columns.phases[p], relative_weights(columns.phases[p]));
    model.slope[p] = std::max(0.0, line.slope);
    model.intercept[p] = line.intercept;
  }
  model.error = largest_error(columns.batch, columns.peak, [&](double b) { return model.at(b); });
  return model;
}

// The line is that of the upper half of the points: below, kernels fill the device less and less.
TimeModel fit_time(const Columns& columns) {
  TimeModel model;
  const size_t count = columns.batch.size();
  const size_t from = count < 4 ? 0 : count / 2;
  const auto upper = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
  };
  const std::vector<double> x = upper(columns.batch), y = upper(columns.time);
  const Line line = fit_line(x, y, relative_weights(y));
  model.slope = std::max(0.0, line.slope);
  model.offset = line.intercept;
  TimeModel best = model;
  best.floor = columns.time.front();
  const auto error_of = [&](const TimeModel& tried) {
    return largest_error(columns.batch, columns.time, [&](double b) { return tried.at(b); });
  };
  best.error = error_of(best);
  // The floor is such that the first point is met.
  for (double p : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0}) {
    const double first = columns.time.front();
    const double on_line = std::clamp(line.at(columns.batch.front()), 0.0, first);
    model.floor = std::pow(std::pow(first, p) - std::pow(on_line, p), 1 / p);
    model.sharpness = p;
    model.error = error_of(model);
    if (model.error < best.error) best = model;
  }
  return best;
}

// max(a, k b) + c, each at least 0: for each place of the knee the two lines in closed form is more
// than is needed; the knee lies at a point, and c below the least time.
void fit_hinge(const Columns& columns, PapayaModel& model) {
  double best = std::numeric_limits<double>::infinity();
  const double least = *std::min_element(columns.time.begin(), columns.time.end());
  constexpr int kSteps = 60;
  for (int step = 0; step <= kSteps; ++step) {
    const double c = least * step / kSteps;
    for (double knee : columns.batch) {
      // Given c and the knee, a = k x knee: one number, by least squares.
      double up = 0, down = 0;
      for (size_t i = 0; i < columns.batch.size(); ++i) {
        const double x = std::max(knee, columns.batch[i]);
        up += x * (columns.time[i] - c);
        down += x * x;
      }
      const double k = std::max(0.0, up / down);
      double error = 0;
      for (size_t i = 0; i < columns.batch.size(); ++i) {
        const double off = k * std::max(knee, columns.batch[i]) + c - columns.time[i];
        error += off * off;
      }
      if (error >= best) continue;
      best = error;
      model.a = k * knee;
      model.k = k;
      model.c = c;
    }
  }
}

PapayaModel fit_papaya(const Columns& columns) {
  PapayaModel model;
  const std::vector<double> equal(columns.batch.size(), 1);
  const Line memory = fit_line(columns.batch, columns.peak, equal);
  const Line time = fit_line(columns.batch, columns.time, equal);
  model.alpha = memory.slope, model.beta = memory.intercept;
  model.gamma = time.slope, model.delta = time.intercept;
  fit_hinge(columns, model);
  std::vector<double> peaks, lines, hinges;
  for (double b : columns.batch) {
    peaks.push_back(memory.at(b));
    lines.push_back(b / std::max(1e-12, model.line_at(b)));
    hinges.push_back(b / std::max(1e-12, model.hinge_at(b)));
  }
  model.memory_r2 = r_squared(columns.peak, peaks);
  model.linear_r2 = r_squared(columns.rate, lines);
  model.hinge_r2 = r_squared(columns.rate, hinges);
  return model;
}

// Where `better` changes, once, on a logarithmic grid refined by halving.
Crossing crossing(double low, double high, const std::function<bool(double)>& better) {
  constexpr int kGrid = 240;
  const auto at = [&](double share) { return low * std::pow(high / low, share); };
  Crossing result;
  int last = -1;
  for (int i = 0; i <= kGrid; ++i)
    if (better(at(static_cast<double>(i) / kGrid))) last = i;
  result.ever = last >= 0;
  if (last < 0 || last == kGrid) return result;
  double inside = static_cast<double>(last) / kGrid,
         outside = static_cast<double>(last + 1) / kGrid;
  for (int i = 0; i < 40; ++i) {
    const double middle = (inside + outside) / 2;
    (better(at(middle)) ? inside : outside) = middle;
  }
  result.below = at(inside);
  return result;
}

// Ties are not wins.
bool wins(const PerformanceModel& plain, const PerformanceModel& method, double memory) {
  constexpr double kTie = 1e-9;
  return method.best_rate(memory) > plain.best_rate(memory) * (1 + kTie);
}

}  // namespace

const char* phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::Forward: return "forward";
    case StepPhase::Backward: return "backward";
    case StepPhase::Optimizer: return "optimizer";
  }
  return "";
}

StepPhase PeakModel::phase_at(double batch) const {
  size_t best = 0;
  for (size_t p = 1; p < kStepPhases; ++p)
    if (intercept[p] + slope[p] * batch > intercept[best] + slope[best] * batch) best = p;
  return static_cast<StepPhase>(best);
}

double PeakModel::at(double batch) const {
  const auto p = static_cast<size_t>(phase_at(batch));
  return intercept[p] + slope[p] * batch;
}

double PeakModel::largest_batch(double memory) const {
  double most = std::numeric_limits<double>::infinity();
  for (size_t p = 0; p < kStepPhases; ++p) {
    if (slope[p] > 0)
      most = std::min(most, (memory - intercept[p]) / slope[p]);
    else if (intercept[p] > memory)
      return -1;
  }
  return most;
}

double TimeModel::at(double batch) const {
  const double line = std::max(0.0, offset + slope * batch);
  // The larger one is taken out, so that no power overflows.
  const double most = std::max(floor, line);
  if (sharpness <= 0 || most <= 0) return most;
  return most * std::pow(std::pow(floor / most, sharpness) + std::pow(line / most, sharpness),
                         1 / sharpness);
}

std::optional<double> TimeModel::saturation() const {
  constexpr double kShare = 0.9;
  if (slope <= 0) return std::nullopt;
  const auto full = [&](double batch) { return batch / at(batch) >= kShare / slope; };
  double low = 1, high = 1e12;
  if (full(low) || !full(high)) return std::nullopt;
  for (int i = 0; i < 100; ++i) {
    const double middle = std::sqrt(low * high);
    (full(middle) ? high : low) = middle;
  }
  return high;
}

double PapayaModel::hinge_at(double batch) const { return std::max(a, k * batch) + c; }

double PerformanceModel::best_rate(double memory) const {
  const double most = std::min(peak.largest_batch(memory), 1e12);
  if (most < 1) return 0;
  double best = most / time.at(most);
  // Where throughput falls again with the batch, the best place lies before.
  for (double b = 1; b < most; b *= 1.1) best = std::max(best, b / time.at(b));
  return best;
}

PerformanceModel PerformanceModel::deeper(double factor) const {
  PerformanceModel result = *this;
  for (size_t p = 0; p < kStepPhases; ++p) {
    result.peak.slope[p] *= factor;
    result.peak.intercept[p] *= factor;
  }
  result.time.floor *= factor;
  result.time.offset *= factor;
  result.time.slope *= factor;
  return result;
}

double r_squared(const std::vector<double>& measured, const std::vector<double>& predicted) {
  double mean = 0;
  for (double value : measured) mean += value / static_cast<double>(measured.size());
  double off = 0, all = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    off += (measured[i] - predicted[i]) * (measured[i] - predicted[i]);
    all += (measured[i] - mean) * (measured[i] - mean);
  }
  if (off <= 0) return 1;
  return all > 0 ? 1 - off / all : 0;
}

PerformanceModel fit_performance(const std::vector<BatchPoint>& points) {
  ensure(!points.empty(), "a performance model needs a simulated step");
  const Columns columns = columns_of(points);
  return {fit_peak(columns), fit_time(columns), fit_papaya(columns)};
}

PapayaDecision papaya_decision(const PapayaModel& plain, const PapayaModel& method, double card) {
  PapayaDecision decision;
  decision.point = (card - plain.beta) / plain.delta;
  const double slower = method.gamma - plain.gamma;
  decision.score = (plain.alpha - method.alpha) / slower;
  // Costs nothing: it pays if it saves anything.
  decision.pays = slower > 0 ? decision.score > decision.point : method.alpha < plain.alpha;
  return decision;
}

Crossing memory_crossing(const PerformanceModel& plain, const PerformanceModel& method, double low,
                         double high) {
  return crossing(low, high, [&](double memory) { return wins(plain, method, memory); });
}

Crossing depth_crossing(const PerformanceModel& plain, const PerformanceModel& method,
                        double memory) {
  constexpr double kRange = 64;
  // From deep to shallow, so that what is found is where it begins.
  Crossing found = crossing(1 / kRange, kRange, [&](double inverse) {
    return wins(plain.deeper(1 / inverse), method.deeper(1 / inverse), memory);
  });
  if (found.below) found.below = 1 / *found.below;
  return found;
}

}  // namespace windlass
