#include <cmath>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/report/page/page.h"

namespace windlass {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostSteps = 2'000, kMostPlaces = 64, kMostNames = 400;

[[noreturn]] void fail_run(const std::string& where, std::string_view what) {
  fail_input("{}: {}; expected what \"windlass train --json\" prints", where, what);
}

double number(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number())
    fail_run(where, fmt::format("\"{}\" is no number", key));
  const double value = object[key].get<double>();
  if (!std::isfinite(value)) fail_run(where, fmt::format("\"{}\" is no number", key));
  return value;
}

std::string name_of(const json& object, const std::string& where) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string())
    fail_run(where, "an entry has no name");
  return printable(object["name"].get<std::string>(), 200);
}

ordered_json place(const json& object, const std::string& where) {
  ordered_json kept = {{"name", object.contains("name") ? name_of(object, where) : "host"},
                       {"peak", number(object, "peak_bytes", where)}};
  if (object.contains("limit_bytes")) kept["limit"] = number(object, "limit_bytes", where);
  return kept;
}

// What the page shows of one side of the comparison, checked.
ordered_json side(const json& object, const std::string& where) {
  ordered_json kept = {{"step_time", number(object, "step_time_s", where)}};
  auto& places = kept["places"] = ordered_json::array();
  if (object.contains("devices") && object["devices"].is_array())
    for (const json& device : object["devices"])
      if (places.size() < kMostPlaces) places.push_back(place(device, where));
  if (object.contains("host") && object["host"].is_object())
    places.push_back(place(object["host"], where));
  auto& kinds = kept["kinds"] = ordered_json::array();
  if (object.contains("tasks") && object["tasks"].is_object())
    for (const auto& [key, value] : object["tasks"].items()) {
      if (kinds.size() >= kMostNames || !value.is_number()) continue;
      const std::string name = key.ends_with("_s") ? key.substr(0, key.size() - 2) : key;
      kinds.push_back({{"name", printable(name, 200)}, {"seconds", value.get<double>()}});
    }
  auto& links = kept["links"] = ordered_json::array();
  if (object.contains("links") && object["links"].is_array())
    for (const json& link : object["links"])
      if (links.size() < kMostPlaces)
        links.push_back({{"name", name_of(link, where)}, {"bytes", number(link, "bytes", where)}});
  return kept;
}

}  // namespace

ordered_json page_run_json(std::string_view text, const std::string& where) {
  ordered_json run;
  auto& steps = run["steps"] = ordered_json::array();
  size_t every = 1, seen = 0;
  for (std::string_view line : split(text, '\n')) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const json entry = json::parse(line, nullptr, false);
    if (!entry.is_object()) fail_run(where, fmt::format("line {} is no JSON object", seen + 1));
    if (entry.contains("measured") && entry.contains("predicted")) {
      run["predicted"] = side(entry["predicted"], where);
      run["measured"] = side(entry["measured"], where);
      // The share of the host's processors that other programs took meanwhile.
      if (entry.contains("other_load")) run["other_load"] = number(entry, "other_load", where);
    } else if (entry.contains("loss")) {
      if (seen++ % every != 0) continue;
      steps.push_back({number(entry, "step", where), number(entry, "loss", where),
                       number(entry, "step_time_s", where)});
      if (steps.size() < kMostSteps) continue;
      // A long run is thinned out.
      ordered_json half = ordered_json::array();
      for (size_t i = 0; i < steps.size(); i += 2) half.push_back(steps[i]);
      steps = std::move(half);
      every *= 2;
    }
  }
  if (!run.contains("measured")) fail_run(where, "there is no measured step in it");
  return run;
}

}  // namespace windlass
