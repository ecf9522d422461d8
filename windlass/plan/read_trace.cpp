#include "windlass/plan/read_trace.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"

namespace windlass {
namespace {

using nlohmann::json;

constexpr double kMostTraceBytes = 1e15;    // of a card
constexpr double kMostMicroseconds = 1e12;  // of a step

// A number of an object, within bounds; none if it is not there or is something else.
std::optional<double> number_at(const json& object, const char* key, double least, double most) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  if (!(value >= least && value <= most)) return std::nullopt;
  return value;
}

std::string text_at(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

TraceFigures from_profiler(const json& events) {
  std::vector<double> steps;
  double host = 0, cards = 0;
  for (const json& event : events) {
    const std::string name = text_at(event, "name");
    if (name.starts_with("ProfilerStep#")) {
      if (const auto duration = number_at(event, "dur", 1e-3, kMostMicroseconds))
        steps.push_back(*duration);
    } else if (name == "[memory]" && event.contains("args")) {
      const json& args = event["args"];
      const double total = number_at(args, "Total Allocated", 0, kMostTraceBytes).value_or(0);
      const bool card = number_at(args, "Device Type", 0, 100).value_or(0) > 0;
      (card ? cards : host) = std::max(card ? cards : host, total);
    }
  }
  TraceFigures figures;
  if (!steps.empty()) {
    std::ranges::sort(steps);
    const size_t half = steps.size() / 2;
    const double middle = steps.size() % 2 == 1 ? steps[half] : (steps[half - 1] + steps[half]) / 2;
    figures.time = Seconds(middle * 1e-6);
  }
  const double peak = cards > 0 ? cards : host;
  if (peak >= 1) figures.peak = Bytes(static_cast<int64_t>(peak));
  return figures;
}

TraceFigures from_snapshot(const json& snapshot) {
  const auto traces = snapshot.find("device_traces");
  double most = 0;
  const size_t cards =
      traces != snapshot.end() && traces->is_array() ? std::max<size_t>(1, traces->size()) : 1;
  for (size_t card = 0; card < cards; ++card) {
    double live = 0;
    for (const json& segment : snapshot["segments"])
      if (number_at(segment, "device", 0, 1e6).value_or(0) == static_cast<double>(card))
        live += number_at(segment, "allocated_size", 0, kMostTraceBytes).value_or(0);
    most = std::max(most, live);
    if (traces == snapshot.end() || !traces->is_array() || card >= traces->size() ||
        !(*traces)[card].is_array())
      continue;
    const json& history = (*traces)[card];
    for (size_t i = history.size(); i-- > 0;) {
      const std::string action = text_at(history[i], "action");
      const double size = number_at(history[i], "size", 0, kMostTraceBytes).value_or(0);
      if (action == "alloc") live -= size;
      if (action == "free_completed") live += size;
      most = std::max(most, live);
    }
  }
  if (most < 1 || most > kMostTraceBytes) return {};
  return {.time = std::nullopt, .peak = Bytes(static_cast<int64_t>(most))};
}

}  // namespace

TraceFigures figures_from_trace(std::string_view text) {
  const json document = parse_json(text, true);
  const json* events = nullptr;
  if (document.is_array())
    events = &document;
  else if (document.is_object() && document.contains("traceEvents") &&
           document["traceEvents"].is_array())
    events = &document["traceEvents"];
  TraceFigures figures;
  if (events != nullptr)
    figures = from_profiler(*events);
  else if (document.is_object() && document.contains("segments") && document["segments"].is_array())
    figures = from_snapshot(document);
  else
    fail_input(
        "it is neither a trace of torch.profiler (\"traceEvents\") nor a memory snapshot "
        "(\"segments\")");
  if (!figures.time && !figures.peak)
    fail_input(
        "it has no \"ProfilerStep#\" events (give the profiler a schedule and call its step()) and "
        "no memory "
        "(profile_memory=True)");
  return figures;
}

}  // namespace windlass
