#include "windlass/plan/few_shot.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/plan/read_trace.h"

namespace windlass {
namespace {

constexpr int64_t kMaxCsvBytes = int64_t{4} << 20;
constexpr int64_t kMaxTraceBytes = int64_t{256} << 20;
constexpr size_t kMaxMeasured = 10'000;

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// All fields, empty ones included.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

double number_of(std::string_view text, size_t line, const char* what) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 1e18)
    fail_input("line {}: \"{}\" is no {}", line, printable(text, 60), what);
  return value;
}

struct Affine {
  double offset = 0, scale = 1;
  std::optional<double> range;
};

// measured = offset + scale x predicted, relative errors; from two points on different predictions.
Affine fit_affine(const std::vector<double>& predicted, const std::vector<double>& measured) {
  constexpr double kMostScale = 10;
  Affine result;
  double w = 0, x = 0, y = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double weight = 1 / (measured[i] * measured[i]);
    w += weight, x += weight * predicted[i], y += weight * measured[i];
  }
  x /= w, y /= w;
  double xx = 0, xy = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double weight = 1 / (measured[i] * measured[i]);
    xx += weight * (predicted[i] - x) * (predicted[i] - x);
    xy += weight * (predicted[i] - x) * (measured[i] - y);
  }
  const double slope = xx > 1e-12 * w * x * x ? xy / xx : y / x;
  result.scale = std::clamp(slope, 1 / kMostScale, kMostScale);
  result.offset = y - result.scale * x;
  if (predicted.size() > 2) {
    double most = 0;
    for (size_t i = 0; i < predicted.size(); ++i)
      most = std::max(
          most, std::abs(result.offset + result.scale * predicted[i] - measured[i]) / measured[i]);
    result.range = most;
  }
  return result;
}

}  // namespace

std::vector<MeasuredPoint> measured_from_csv(std::string_view text, const std::string& where) {
  try {
    std::vector<MeasuredPoint> points;
    size_t number = 0;
    for (std::string_view line : split(text, '\n')) {
      ++number;
      line = trimmed(line);
      if (number == 1) {
        if (line != "batch,method,peak_bytes,step_time_s")
          fail_input("line 1: expected the header batch,method,peak_bytes,step_time_s");
        continue;
      }
      if (line.empty()) continue;
      const std::vector<std::string_view> fields = fields_of(line);
      if (fields.size() != 4) fail_input("line {}: {} fields, expected 4", number, fields.size());
      MeasuredPoint point;
      const double batch = number_of(fields[0], number, "batch");
      if (batch != std::floor(batch) || batch > 1e9) fail_input("line {}: no batch", number);
      point.batch = static_cast<int64_t>(batch);
      point.method = printable(fields[1], 60);
      if (!fields[2].empty())
        point.peak = Bytes(static_cast<int64_t>(number_of(fields[2], number, "peak in bytes")));
      if (!fields[3].empty()) point.time = Seconds(number_of(fields[3], number, "time in seconds"));
      points.push_back(std::move(point));
      if (points.size() > kMaxMeasured) fail_input("more than {} steps", kMaxMeasured);
    }
    if (points.empty()) fail_input("no steps");
    return points;
  } catch (const Error& error) {
    throw error.within(where);
  }
}

std::vector<MeasuredPoint> read_measured(const std::string& name) {
  const size_t at = name.rfind('@');
  const std::string path = name.substr(0, at);
  MeasuredPoint point;
  point.method = "plain";
  if (at != std::string::npos) {
    const std::string_view said = std::string_view(name).substr(at + 1);
    const size_t comma = said.find(',');
    const std::string_view batch = said.substr(0, comma);
    const auto [end, error] =
        std::from_chars(batch.data(), batch.data() + batch.size(), point.batch);
    if (comma != std::string_view::npos) point.method = printable(said.substr(comma + 1), 60);
    if (error != std::errc() || end != batch.data() + batch.size() || point.batch < 1 ||
        point.batch > 1'000'000'000 || point.method.empty())
      fail_input("{}: expected FILE@BATCH or FILE@BATCH,METHOD, e.g. trace.json@16",
                 printable(name));
  }
  std::ifstream stream(path, std::ios::binary);
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (!stream || failed) fail_input("{}: cannot read the file", path);
  const int64_t most = at == std::string::npos ? kMaxCsvBytes : kMaxTraceBytes;
  if (static_cast<int64_t>(size) > most) fail_input("{}: larger than {} bytes", path, most);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (at == std::string::npos) {
    if (text.starts_with('{') || text.starts_with('['))
      fail_input("{}: a trace or a snapshot does not say its batch: write {}@BATCH", path, path);
    return measured_from_csv(text, path);
  }
  try {
    const TraceFigures figures = figures_from_trace(text);
    point.time = figures.time;
    point.peak = figures.peak;
  } catch (const Error& error) {
    throw error.within(path);
  }
  return {point};
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
  result.times = times.size();
  result.peaks = peaks.size();
  if (times.size() == 1) result.time_scale = times[0] / own_times[0];
  if (peaks.size() == 1) result.peak_offset = peaks[0] - own_peaks[0];
  if (times.size() > 1) {
    const Affine line = fit_affine(own_times, times);
    result.time_offset = line.offset, result.time_scale = line.scale;
    result.time_range = line.range;
  }
  if (peaks.size() > 1) {
    const Affine line = fit_affine(own_peaks, peaks);
    result.peak_offset = line.offset, result.peak_scale = line.scale;
    result.peak_range = line.range;
  }
  return result;
}

BatchPoint Correction::applied(const BatchPoint& predicted, Bytes limit) const {
  if (!any()) return predicted;
  BatchPoint point = predicted;
  constexpr double kLeast = 1e-9;
  if (times > 0)
    point.time = Seconds(std::max(kLeast, time_offset + time_scale * predicted.time.value));
  if (peaks == 0) return point;
  const auto moved = [&](Bytes bytes) {
    return Bytes(std::max<int64_t>(
        0, std::llround(peak_offset + peak_scale * static_cast<double>(bytes.value))));
  };
  point.peak = moved(predicted.peak);
  for (Bytes& phase : point.phases) phase = moved(phase);
  point.fits = point.peak <= limit;
  return point;
}

}  // namespace windlass
