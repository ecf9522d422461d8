#include "windlass/plan/read_measured.h"

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
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
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
    // Some of PyTorch's traces begin with an empty line.
    const std::string_view begin = trimmed(text);
    if (begin.starts_with('{') || begin.starts_with('['))
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

}  // namespace windlass
