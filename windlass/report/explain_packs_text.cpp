#include "windlass/report/explain_packs_text.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

std::string seconds_text(double seconds) {
  return seconds == 0 ? "-" : format_seconds(Seconds(seconds));
}
std::string bytes_text(int64_t bytes) { return format_bytes(Bytes(bytes)); }

std::string difference(double seconds) {
  if (std::abs(seconds) < 1e-9) return "same";
  return (seconds < 0 ? "-" : "+") + seconds_text(std::abs(seconds));
}

std::string choices_text(const PackExplanation& found, const std::vector<PackChoice>& choices) {
  Table table({Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Left});
  table.add({"", "", "step", "", "peak", "swap volume", ""});
  for (const PackChoice& choice : choices)
    table.add({choice.decision, choice.choice, seconds_text(choice.cost.seconds),
               difference(choice.cost.seconds - found.cost.seconds),
               bytes_text(choice.cost.peak_bytes), bytes_text(choice.cost.volume.swapped()),
               choice.cost.fits ? "fits" : "does not fit"});
  return table.text("  ");
}

std::string explanation_text(const Plan& plan, const PackExplanation& found) {
  std::string text =
      fmt::format("{} on {}: {} a step of {} samples, {} of {} on the fullest device{}\n\n",
                  plan.model.source, plan.machine.name, seconds_text(found.cost.seconds),
                  plan.samples, bytes_text(found.cost.peak_bytes), bytes_text(found.limit),
                  found.cost.fits ? "" : ": does not fit");
  if (plan.prediction.step_time.value != found.cost.seconds)
    text += fmt::format(
        "by layers, steps in a row; the plan promises {} for a step alone, op by op\n\n",
        format_seconds(plan.prediction.step_time));
  Table times({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right});
  times.add({"where the time goes", "forward", "recompute", "backward", "update", "idle"});
  for (const PackTimes& device : found.times)
    times.add({device.device, seconds_text(device.forward), seconds_text(device.recompute),
               seconds_text(device.backward), seconds_text(device.update),
               seconds_text(device.idle)});
  text += times.text();
  if (!found.waits.empty()) {
    Table waits({Align::Left, Align::Right, Align::Left, Align::Left});
    waits.add({"the longest waits", "", "before", "for"});
    for (const PackWait& wait : found.waits)
      waits.add({wait.device, seconds_text(wait.seconds), wait.before, wait.waits_for});
    text += "\n" + waits.text();
  }
  Table bytes({Align::Left, Align::Right});
  bytes.add({fmt::format("memory of {} at its peak", found.fullest), ""});
  for (const PackBytes& part : found.bytes) bytes.add({"  " + part.what, bytes_text(part.bytes)});
  text += "\n" + bytes.text();
  text += fmt::format("\nother choices, everything else unchanged\n{}",
                      choices_text(found, found.choices));
  text += fmt::format("\nof single packs, the fastest\n{}", choices_text(found, found.of_packs));
  const auto better = [&](const PackChoice& choice) {
    return choice.cost.fits && choice.cost.seconds < found.cost.seconds * (1 - 1e-6);
  };
  if (std::ranges::any_of(found.choices, better) || std::ranges::any_of(found.of_packs, better))
    text +=
        "\nSome would be faster: they move more than the plan, or the search did not come to "
        "them.\n";
  return text;
}

ordered_json choices_json(const PackExplanation& found, const std::vector<PackChoice>& choices) {
  ordered_json list = ordered_json::array();
  for (const PackChoice& choice : choices)
    list.push_back({{"decision", choice.decision},
                    {"choice", choice.choice},
                    {"fits", choice.cost.fits},
                    {"step_time_s", choice.cost.seconds},
                    {"step_time_difference_s", choice.cost.seconds - found.cost.seconds},
                    {"peak_bytes", choice.cost.peak_bytes},
                    {"swap_bytes", choice.cost.volume.swapped()}});
  return list;
}

ordered_json explanation_json(const Plan& plan, const PackExplanation& found) {
  ordered_json json = {{"model", plan.model.source},
                       {"machine", plan.machine.name},
                       {"batch", plan.samples},
                       {"step_time_s", found.cost.seconds},
                       {"promised_step_time_s", plan.prediction.step_time.value},
                       {"peak_bytes", found.cost.peak_bytes},
                       {"limit_bytes", found.limit},
                       {"fits", found.cost.fits},
                       {"swap_bytes", found.cost.volume.swapped()}};
  auto& times = json["time"] = ordered_json::array();
  for (const PackTimes& device : found.times)
    times.push_back({{"device", device.device},
                     {"forward_s", device.forward},
                     {"recompute_s", device.recompute},
                     {"backward_s", device.backward},
                     {"update_s", device.update},
                     {"idle_s", device.idle}});
  auto& waits = json["waits"] = ordered_json::array();
  for (const PackWait& wait : found.waits)
    waits.push_back({{"device", wait.device},
                     {"time_s", wait.seconds},
                     {"before", wait.before},
                     {"for", wait.waits_for}});
  auto& memory = json["memory"] = {{"device", found.fullest}};
  auto& parts = memory["parts"] = ordered_json::array();
  for (const PackBytes& part : found.bytes)
    parts.push_back({{"what", part.what}, {"bytes", part.bytes}});
  json["alternatives"] = choices_json(found, found.choices);
  json["pack_alternatives"] = choices_json(found, found.of_packs);
  return json;
}

}  // namespace

std::string packs_explanation(const Plan& plan, const PackExplanation& found, bool json) {
  return json ? json_text(explanation_json(plan, found)) : explanation_text(plan, found);
}

}  // namespace windlass
