#include "windlass/plan/few_shot.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"

namespace windlass {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What is thought of offset and scale before anything is measured, as standard deviations around
// values, and how far measured points usually lie from a line.
struct BeforeMeasuring {
  double offset = 0, offset_deviation = 0;
  double scale = 1, scale_deviation = 0;
  double noise = 0;
};

// The likeliest line, with relative errors of so much.
CorrectionLine line_through(const std::vector<double>& predicted,
                            const std::vector<double>& measured, const BeforeMeasuring& before) {
  const double of_offset = 1 / (before.offset_deviation * before.offset_deviation);
  const double of_scale = 1 / (before.scale_deviation * before.scale_deviation);
  // Normal equations around what was thought before: [a b; b c] x (offset, scale) = (d, e).
  double a = of_offset, b = 0, c = of_scale, d = 0, e = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double x = predicted[i], left = measured[i] - before.offset - before.scale * x;
    const double weight = 1 / (before.noise * before.noise * measured[i] * measured[i]);
    a += weight, b += weight * x, c += weight * x * x;
    d += weight * left, e += weight * x * left;
  }
  const double determinant = a * c - b * b;
  CorrectionLine line;
  line.points = predicted.size();
  line.noise = before.noise;
  line.offset = before.offset + (c * d - b * e) / determinant;
  line.scale = before.scale + (a * e - b * d) / determinant;
  line.offset_variance = c / determinant;
  line.scale_variance = a / determinant;
  line.covariance = -b / determinant;
  return line;
}

// Once more with the noise that the first line leaves, if that is more than usual.
CorrectionLine weighed_line(const std::vector<double>& predicted,
                            const std::vector<double>& measured, BeforeMeasuring before) {
  const CorrectionLine first = line_through(predicted, measured, before);
  if (predicted.size() < 3) return first;
  double squares = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double left = first.at(predicted[i]) / measured[i] - 1;
    squares += left * left;
  }
  const double noise = std::sqrt(squares / static_cast<double>(predicted.size() - 2));
  if (noise <= before.noise) return first;
  before.noise = noise;
  return line_through(predicted, measured, before);
}

// A step of another host or clock takes so many times as long; a fifth of the smallest step
// may be something that the prediction leaves out. Timed steps repeat to 2 %.
CorrectionLine fit_times(const std::vector<double>& predicted,
                         const std::vector<double>& measured) {
  std::vector<double> ratios;
  for (size_t i = 0; i < predicted.size(); ++i) ratios.push_back(measured[i] / predicted[i]);
  const double scale = median(ratios);
  return weighed_line(predicted, measured,
                      {.offset_deviation = 0.2 * std::ranges::min(measured),
                       .scale = scale,
                       .scale_deviation = 0.2 * scale,
                       .noise = 0.02});
}

// Something is there beside the tensors, a context or a workspace, whatever it takes; what grows
// with the batch is known to a tenth. Peaks repeat to half a percent.
CorrectionLine fit_peaks(const std::vector<double>& predicted,
                         const std::vector<double>& measured) {
  std::vector<double> beside;
  for (size_t i = 0; i < predicted.size(); ++i) beside.push_back(measured[i] - predicted[i]);
  const double offset = median(beside);
  return weighed_line(predicted, measured,
                      {.offset = offset,
                       .offset_deviation = std::abs(offset) + 0.05 * std::ranges::min(measured),
                       .scale_deviation = 0.1,
                       .noise = 0.005});
}

constexpr double kSharpest = 30;  // beyond, the longer one is the sum

// Of the time's logarithm by that of the host's factor; the device's has the rest.
double host_weight(const BatchPoint& point, double host, double device) {
  const double p = std::min(point.sharpness, kSharpest);
  const double ratio = device * point.device.value / (host * point.host.value);
  return 1 / (1 + std::pow(ratio, p));
}

double time_of(const BatchPoint& point, double host, double device) {
  const double p = std::min(point.sharpness, kSharpest);
  const double long_one = std::max(host * point.host.value, device * point.device.value);
  const double short_one = std::min(host * point.host.value, device * point.device.value);
  return long_one * std::pow(1 + std::pow(short_one / long_one, p), 1 / p);
}

bool has_parts(const BatchPoint& point) {
  return point.host.value > 0 && point.device.value > 0 && point.sharpness > 0;
}

// Least squares of logarithms, weighed against what is known before.
class PartsFit {
 public:
  PartsFit(const std::vector<MeasuredPoint>& measured, const std::vector<BatchPoint>& predicted,
           double noise)
      : noise_(noise) {
    for (size_t i = 0; i < measured.size(); ++i)
      if (measured[i].time) points_.push_back({measured[i].time->value, &predicted[i]});
  }

  // A step that is faster than predicted may be so by its host or by its device: each is where the
  // search begins once, and what leaves least is taken.
  CorrectionParts best() const {
    std::vector<double> ratios;
    for (const Point& point : points_)
      ratios.push_back(std::log(point.measured / time_of(*point.predicted, 1, 1)));
    const double all = median(ratios);
    Normal best = descend({0, 0});
    for (const Logarithms start : {Logarithms{all, 0}, {0, all}, {all, all}}) {
      const Normal found = descend(start);
      if (found.left < best.left) best = found;
    }
    const double determinant = best.a * best.c - best.b * best.b;
    CorrectionParts parts;
    parts.points = points_.size();
    parts.noise = noise_;
    parts.host = std::exp(best.at.host), parts.device = std::exp(best.at.device);
    parts.host_variance = best.c / determinant;
    parts.device_variance = best.a / determinant;
    parts.covariance = -best.b / determinant;
    return parts;
  }

 private:
  struct Point {
    double measured;
    const BatchPoint* predicted;
  };
  struct Logarithms {
    double host = 0, device = 0;
  };
  // Normal equations [a b; b c] x step = (d, e) around a place, and the squares that are left
  // there.
  struct Normal {
    Logarithms at;
    double a = 0, b = 0, c = 0, d = 0, e = 0, left = 0;
  };

  Normal normal(Logarithms at) const {
    constexpr double kHost = 0.5, kDevice = 0.2;
    Normal n;
    n.at = at;
    n.a = 1 / (kHost * kHost), n.c = 1 / (kDevice * kDevice);
    n.d = -at.host * n.a, n.e = -at.device * n.c;
    n.left = at.host * at.host * n.a + at.device * at.device * n.c;
    const double weight = 1 / (noise_ * noise_);
    for (const Point& point : points_) {
      const double host = std::exp(at.host), device = std::exp(at.device);
      const double h = host_weight(*point.predicted, host, device);
      const double left = std::log(point.measured / time_of(*point.predicted, host, device));
      n.a += weight * h * h, n.b += weight * h * (1 - h), n.c += weight * (1 - h) * (1 - h);
      n.d += weight * h * left, n.e += weight * (1 - h) * left;
      n.left += weight * left * left;
    }
    return n;
  }

  // By Levenberg and Marquardt: where host and device take about as long, a whole step goes from
  // one side of the change to the other for ever.
  Normal descend(Logarithms start) const {
    constexpr int kRounds = 200;
    constexpr double kMostDamped = 1e12;
    Normal now = normal(start);
    double damping = 1e-3;
    for (int round = 0; round < kRounds && damping < kMostDamped; ++round) {
      const double a = now.a * (1 + damping), c = now.c * (1 + damping);
      const double determinant = a * c - now.b * now.b;
      const Normal next = normal({now.at.host + (c * now.d - now.b * now.e) / determinant,
                                  now.at.device + (a * now.e - now.b * now.d) / determinant});
      if (next.left < now.left)
        now = next, damping /= 10;
      else
        damping *= 10;
    }
    return now;
  }

  double noise_;
  std::vector<Point> points_;
};

// Once more with the noise that the first fit leaves, if that is more than usual.
CorrectionParts fit_parts(const std::vector<MeasuredPoint>& measured,
                          const std::vector<BatchPoint>& predicted) {
  constexpr double kNoise = 0.02;
  const CorrectionParts first = PartsFit(measured, predicted, kNoise).best();
  if (first.points < 3) return first;
  double squares = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (!measured[i].time) continue;
    const double left = first.at(predicted[i]) / measured[i].time->value - 1;
    squares += left * left;
  }
  const double noise = std::sqrt(squares / static_cast<double>(first.points - 2));
  return noise <= kNoise ? first : PartsFit(measured, predicted, noise).best();
}

}  // namespace

double CorrectionParts::at(const BatchPoint& predicted) const {
  return time_of(predicted, host, device);
}

double CorrectionParts::range(const BatchPoint& predicted) const {
  // Kernels of another batch or method are another mixture of what a device does well and badly,
  // and how sharply host and device pass into each other is not known to more than this.
  constexpr double kMixture = 0.04;
  const double h = host_weight(predicted, host, device), d = 1 - h;
  const double variance = h * h * host_variance + 2 * h * d * covariance + d * d * device_variance +
                          noise * noise + kMixture * kMixture;
  return 2 * std::sqrt(variance);
}

Correction fit_correction(const std::vector<MeasuredPoint>& measured,
                          const std::vector<BatchPoint>& predicted) {
  ensure(measured.size() == predicted.size(), "each measured step has a predicted one");
  std::vector<double> times, own_times, peaks, own_peaks;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i].time) {
      times.push_back(measured[i].time->value);
      own_times.push_back(predicted[i].time.value);
    }
    if (measured[i].peak) {
      peaks.push_back(static_cast<double>(measured[i].peak->value));
      own_peaks.push_back(static_cast<double>(predicted[i].peak.value));
    }
  }
  Correction result;
  if (!times.empty() && std::ranges::all_of(predicted, has_parts))
    result.parts = fit_parts(measured, predicted);
  else if (!times.empty())
    result.time = fit_times(own_times, times);
  if (!peaks.empty()) result.peak = fit_peaks(own_peaks, peaks);
  return result;
}

double CorrectionLine::range(double predicted) const {
  const double expected = at(predicted);
  if (points == 0 || !(expected > 0)) return 0;
  const double variance = offset_variance + 2 * predicted * covariance +
                          predicted * predicted * scale_variance +
                          noise * noise * expected * expected;
  return 2 * std::sqrt(std::max(0.0, variance)) / expected;
}

std::optional<double> Correction::time_range(const BatchPoint& applied) const {
  if (parts.points > 0 && has_parts(applied)) return parts.range(applied);
  if (time.points == 0) return std::nullopt;
  return time.range((applied.time.value - time.offset) / time.scale);
}

std::optional<double> Correction::peak_range(const BatchPoint& applied) const {
  if (peak.points == 0) return std::nullopt;
  return peak.range((static_cast<double>(applied.peak.value) - peak.offset) / peak.scale);
}

BatchPoint Correction::applied(const BatchPoint& predicted, Bytes limit) const {
  if (!any()) return predicted;
  BatchPoint point = predicted;
  constexpr double kLeast = 1e-9;
  if (parts.points > 0 && has_parts(predicted))
    point.time = Seconds(parts.at(predicted));
  else if (time.points > 0)
    point.time = Seconds(std::max(kLeast, time.at(predicted.time.value)));
  if (peak.points == 0) return point;
  const auto moved = [&](Bytes bytes) {
    return Bytes(std::max<int64_t>(0, std::llround(peak.at(static_cast<double>(bytes.value)))));
  };
  point.peak = moved(predicted.peak);
  for (Bytes& phase : point.phases) phase = moved(phase);
  point.fits = point.peak <= limit;
  return point;
}

}  // namespace windlass
