#include "windlass/report/comparison.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/lives.h"

namespace windlass {
namespace {

std::string difference(double predicted, double measured) {
  if (measured == 0) return "";
  return fmt::format("{:+.1f} %", 100 * (predicted - measured) / measured);
}

}  // namespace

void MeasuredSteps::add(Nanoseconds time, const std::vector<Nanoseconds>& start,
                        const std::vector<Nanoseconds>& end, const std::vector<int64_t>& peaks) {
  peaks_.resize(peaks.size(), 0);
  for (size_t m = 0; m < peaks.size(); ++m) peaks_[m] = std::max(peaks_[m], peaks[m]);
  if (++steps_ == 2) times_.clear(), timelines_.clear();
  times_.push_back(time);
  timelines_.push_back({start, end});
  constexpr size_t kKept = 32;
  if (timelines_.size() > kKept) timelines_.erase(timelines_.begin());
}

MeasuredStep MeasuredSteps::result() const {
  std::vector<Nanoseconds> sorted = times_;
  std::ranges::sort(sorted);
  const Nanoseconds median = sorted[sorted.size() / 2];
  MeasuredStep step;
  step.step_time = Seconds(static_cast<double>(median) * 1e-9);
  step.fastest = Seconds(static_cast<double>(sorted.front()) * 1e-9);
  step.slowest = Seconds(static_cast<double>(sorted.back()) * 1e-9);
  const size_t offset = times_.size() - timelines_.size();
  size_t nearest = 0;
  for (size_t i = 1; i < timelines_.size(); ++i)
    if (std::abs(times_[offset + i] - median) < std::abs(times_[offset + nearest] - median))
      nearest = i;
  step.start = timelines_[nearest].start;
  step.end = timelines_[nearest].end;
  step.peaks = peaks_;
  return step;
}

Comparison compare(const SimulatedStep& predicted, const MeasuredStep& measured) {
  Comparison result;
  result.predicted_time = predicted.step_time();
  result.measured_time = measured.step_time;
  const TaskGraph& tasks = predicted.tasks;
  for (size_t i = 0; i < tasks.size(); ++i) {
    auto found = std::ranges::find(result.kinds, tasks.tasks[i].kind, &Comparison::Kind::kind);
    if (found == result.kinds.end())
      found = result.kinds.insert(found, Comparison::Kind{.kind = tasks.tasks[i].kind});
    ++found->tasks;
    found->predicted += seconds(predicted.result.end[i] - predicted.result.start[i]);
    found->measured += seconds(measured.end[i] - measured.start[i]);
  }
  std::ranges::sort(result.kinds, {}, &Comparison::Kind::kind);
  for (size_t m = 0; m < tasks.memories.size(); ++m) {
    const Memory& memory = tasks.memories[m];
    const auto devices =
        memory.team.valid() ? static_cast<int64_t>(tasks[memory.team].devices.size()) : 0;
    result.memories.push_back({memory.name, devices, memory.limit.value,
                               predicted.result.peaks[m].bytes, measured.peaks[m]});
  }
  return result;
}

std::string comparison_text(const Comparison& comparison) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right});
  table.add({"", "predicted", "measured", "predicted is"});
  table.add({"step time", format_seconds(comparison.predicted_time),
             format_seconds(comparison.measured_time),
             difference(comparison.predicted_time.value, comparison.measured_time.value)});
  for (const Comparison::Kind& kind : comparison.kinds)
    table.add({fmt::format("  {} ({} tasks)", task_kind_name(kind.kind), kind.tasks),
               format_seconds(kind.predicted), format_seconds(kind.measured),
               difference(kind.predicted.value, kind.measured.value)});
  for (const Comparison::Memory& memory : comparison.memories) {
    if (memory.predicted == 0 && memory.measured == 0) continue;
    table.add(
        {fmt::format("peak of {}{} (limit {})", memory.devices > 1 ? "each of " : "", memory.name,
                     format_bytes(Bytes(memory.limit))),
         format_bytes(Bytes(memory.predicted)), format_bytes(Bytes(memory.measured)),
         difference(static_cast<double>(memory.predicted), static_cast<double>(memory.measured))});
  }
  return table.text();
}

nlohmann::ordered_json comparison_json(const Comparison& comparison) {
  using nlohmann::ordered_json;
  const auto side = [&](bool predicted) {
    ordered_json json;
    json["step_time_s"] =
        predicted ? comparison.predicted_time.value : comparison.measured_time.value;
    ordered_json devices = ordered_json::array();
    ordered_json host = {{"peak_bytes", 0}};
    for (const Comparison::Memory& memory : comparison.memories) {
      const int64_t peak = predicted ? memory.predicted : memory.measured;
      if (memory.devices > 0)
        devices.push_back({{"name", memory.name},
                           {"devices", memory.devices},
                           {"peak_bytes", peak},
                           {"limit_bytes", memory.limit}});
      else
        host = {{"peak_bytes", peak}, {"limit_bytes", memory.limit}};
    }
    json["devices"] = devices;
    json["host"] = host;
    ordered_json kinds = ordered_json::object();
    for (const Comparison::Kind& kind : comparison.kinds)
      kinds[std::string(task_kind_name(kind.kind)) + "_s"] =
          predicted ? kind.predicted.value : kind.measured.value;
    json["tasks"] = kinds;
    return json;
  };
  return {{"predicted", side(true)}, {"measured", side(false)}};
}

SimulatedStep as_step(const SimulatedStep& predicted, const MeasuredStep& measured) {
  SimulatedStep step = predicted;
  step.result.start = measured.start;
  step.result.end = measured.end;
  step.result.makespan = measured.end.empty() ? 0 : *std::ranges::max_element(measured.end);
  return step;
}

}  // namespace windlass
