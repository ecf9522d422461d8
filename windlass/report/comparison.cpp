#include "windlass/report/comparison.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/labels.h"
#include "windlass/report/lives.h"
#include "windlass/sim/summary.h"

namespace windlass {
namespace {

std::string difference(double predicted, double measured) {
  if (measured == 0) return "";
  return fmt::format("{:+.1f} %", 100 * (predicted - measured) / measured);
}

Comparison::Kind& entry_of(std::vector<Comparison::Kind>& kinds, TaskKind kind) {
  const auto found = std::ranges::lower_bound(kinds, kind, {}, &Comparison::Kind::kind);
  if (found != kinds.end() && found->kind == kind) return *found;
  return *kinds.insert(found, Comparison::Kind{.kind = kind});
}

void add_most(std::vector<int64_t>& most, const std::vector<int64_t>& more) {
  most.resize(more.size(), 0);
  for (size_t i = 0; i < more.size(); ++i) most[i] = std::max(most[i], more[i]);
}

// Devices of the step and hosts, with their peaks.
std::vector<Comparison::Place> places_of(const SimulatedStep& predicted, const StepRecord& measured,
                                         const Machine& machine,
                                         std::map<DeviceId, size_t>& of_device) {
  const TaskGraph& tasks = predicted.tasks;
  std::map<DeviceId, MemoryId> memories;
  for (size_t m = 0; m < tasks.memories.size(); ++m)
    if (tasks.memories[m].team.valid())
      for (DeviceId device : tasks[tasks.memories[m].team].devices)
        memories.try_emplace(device, MemoryId(m));
  std::vector<Comparison::Place> places;
  for (const auto& [device, memory] : memories) {
    of_device[device] = places.size();
    places.push_back({.name = machine[device].name,
                      .limit = machine[device].limit.value,
                      .predicted = predicted.result.peaks[memory.index()].bytes,
                      .measured = measured.device_peaks[device.index()]});
  }
  for (size_t m = 0; m < tasks.memories.size(); ++m)
    if (!tasks.memories[m].team.valid())
      places.push_back({.name = tasks.memories[m].name,
                        .host = true,
                        .limit = tasks.memories[m].limit.value,
                        .predicted = predicted.result.peaks[m].bytes,
                        .measured = measured.peaks[m]});
  return places;
}

void add_kinds(const std::vector<Comparison::Kind>& kinds, Table& table,
               const std::string& indent) {
  for (const Comparison::Kind& kind : kinds)
    table.add({fmt::format("{}{} ({} task{})", indent, task_kind_name(kind.kind), kind.tasks,
                           kind.tasks == 1 ? "" : "s"),
               format_seconds(kind.predicted), format_seconds(kind.measured),
               difference(kind.predicted.value, kind.measured.value)});
}

void add_bytes(const std::string& name, int64_t predicted, int64_t measured, Table& table) {
  table.add({name, format_bytes(Bytes(predicted)), format_bytes(Bytes(measured)),
             difference(static_cast<double>(predicted), static_cast<double>(measured))});
}

}  // namespace

void MeasuredSteps::add(const StepRecord& record) {
  add_most(peaks_, record.peaks);
  add_most(device_peaks_, record.device_peaks);
  if (++steps_ == 2) times_.clear(), records_.clear();
  times_.push_back(record.time);
  records_.push_back(record);
  constexpr size_t kKept = 32;
  if (records_.size() > kKept) records_.erase(records_.begin());
}

MeasuredStep MeasuredSteps::result() const {
  std::vector<Nanoseconds> sorted = times_;
  std::ranges::sort(sorted);
  const Nanoseconds median = sorted[sorted.size() / 2];
  MeasuredStep step;
  step.step_time = seconds(median);
  step.fastest = seconds(sorted.front());
  step.slowest = seconds(sorted.back());
  step.record = *std::ranges::min_element(
      records_, {}, [&](const StepRecord& record) { return std::abs(record.time - median); });
  step.record.peaks = peaks_;
  step.record.device_peaks = device_peaks_;
  return step;
}

Comparison compare(const SimulatedStep& predicted, const MeasuredStep& measured,
                   const Machine& machine) {
  Comparison result;
  result.predicted_time = predicted.step_time();
  result.measured_time = measured.step_time;
  const TaskGraph& tasks = predicted.tasks;
  const StepRecord& record = measured.record;
  std::map<DeviceId, size_t> of_device;
  result.places = places_of(predicted, record, machine, of_device);
  const auto host = std::ranges::find(result.places, true, &Comparison::Place::host);
  const auto at = [&](TaskId task, DeviceId device) -> Comparison::Kind& {
    Comparison::Place& place = device.valid() ? result.places[of_device.at(device)] : *host;
    return entry_of(place.kinds, tasks[task].kind);
  };
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Seconds time = seconds(predicted.result.end[i] - predicted.result.start[i]);
    Comparison::Kind& kind = entry_of(result.kinds, tasks.tasks[i].kind);
    ++kind.tasks;
    kind.predicted += time;
    kind.measured += seconds(record.end[i] - record.start[i]);
    std::vector<DeviceId> devices = devices_of(tasks, TaskId(i));
    if (devices.empty() && host != result.places.end()) devices.push_back({});
    for (DeviceId device : devices) {
      Comparison::Kind& own = at(TaskId(i), device);
      ++own.tasks;
      own.predicted += time;
    }
  }
  for (const PartTime& part : record.parts) {
    std::vector<DeviceId> devices = {part.device};
    if (!part.device.valid()) devices = devices_of(tasks, part.task);
    if (devices.empty() && host != result.places.end()) devices.push_back({});
    for (DeviceId device : devices)
      at(part.task, device).measured += seconds(part.end - part.start);
  }
  std::map<LinkDirection, std::pair<int64_t, int64_t>> links;
  for (const LinkLoad& load : link_bytes(tasks, predicted.result))
    links[load.direction].first = load.bytes.value;
  for (const LinkLoad& load : record.links) links[load.direction].second = load.bytes.value;
  for (const auto& [direction, bytes] : links)
    result.links.push_back({direction_label(machine, direction), bytes.first, bytes.second});
  return result;
}

std::string comparison_text(const Comparison& comparison) {
  // More than a person reads; programs have all of them.
  constexpr size_t kMostPlaces = 9, kMostLinks = 16;
  Table table({Align::Left, Align::Right, Align::Right, Align::Right});
  table.add({"", "predicted", "measured", "predicted is"});
  table.add({"step time", format_seconds(comparison.predicted_time),
             format_seconds(comparison.measured_time),
             difference(comparison.predicted_time.value, comparison.measured_time.value)});
  for (size_t p = 0; p < std::min(comparison.places.size(), kMostPlaces); ++p) {
    const Comparison::Place& place = comparison.places[p];
    add_kinds(place.kinds, table, fmt::format("  {} ", place.name));
    if (place.predicted > 0 || place.measured > 0)
      add_bytes(fmt::format("peak of {} (limit {})", place.name, format_bytes(Bytes(place.limit))),
                place.predicted, place.measured, table);
  }
  if (comparison.places.size() > kMostPlaces)
    table.add({fmt::format("  and {} more", comparison.places.size() - kMostPlaces), "", "", ""});
  for (size_t i = 0; i < std::min(comparison.links.size(), kMostLinks); ++i)
    add_bytes("over " + comparison.links[i].name, comparison.links[i].predicted,
              comparison.links[i].measured, table);
  if (comparison.links.size() > kMostLinks)
    table.add(
        {fmt::format("  and {} links more", comparison.links.size() - kMostLinks), "", "", ""});
  return table.text();
}

nlohmann::ordered_json comparison_json(const Comparison& comparison) {
  using nlohmann::ordered_json;
  const auto side = [&](bool predicted) {
    const auto kinds = [&](const std::vector<Comparison::Kind>& list) {
      ordered_json json = ordered_json::object();
      for (const Comparison::Kind& kind : list)
        json[std::string(task_kind_name(kind.kind)) + "_s"] =
            predicted ? kind.predicted.value : kind.measured.value;
      return json;
    };
    ordered_json json;
    json["step_time_s"] =
        predicted ? comparison.predicted_time.value : comparison.measured_time.value;
    ordered_json devices = ordered_json::array();
    ordered_json host = {{"peak_bytes", 0}};
    for (const Comparison::Place& place : comparison.places) {
      const int64_t peak = predicted ? place.predicted : place.measured;
      ordered_json entry = {{"name", place.name},
                            {"peak_bytes", peak},
                            {"limit_bytes", place.limit},
                            {"tasks", kinds(place.kinds)}};
      if (place.host)
        host = std::move(entry);
      else
        devices.push_back(std::move(entry));
    }
    json["devices"] = devices;
    json["host"] = host;
    json["tasks"] = kinds(comparison.kinds);
    ordered_json links = ordered_json::array();
    for (const Comparison::LinkUse& link : comparison.links)
      links.push_back({{"name", link.name}, {"bytes", predicted ? link.predicted : link.measured}});
    json["links"] = links;
    return json;
  };
  return {{"predicted", side(true)}, {"measured", side(false)}};
}

}  // namespace windlass
