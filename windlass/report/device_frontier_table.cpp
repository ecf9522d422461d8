#include "windlass/report/device_frontier_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

std::string devices_text(size_t count) {
  return fmt::format("{} device{}", count, count == 1 ? "" : "s");
}

std::vector<size_t> counts_of(const std::vector<FrontierCell>& cells) {
  std::vector<size_t> counts;
  for (const FrontierCell& cell : cells)
    if (counts.empty() || counts.back() != cell.devices) counts.push_back(cell.devices);
  return counts;
}

// Limits down, devices across, samples a second.
std::string throughput_text(const std::vector<FrontierCell>& cells, int64_t samples) {
  const std::vector<size_t> counts = counts_of(cells);
  const size_t limits = cells.size() / counts.size();
  std::vector<Align> aligns(counts.size() + 1, Align::Right);
  Table table(aligns);
  std::vector<std::string> line = {"each has"};
  for (size_t count : counts) line.push_back(devices_text(count));
  table.add(line);
  for (size_t i = 0; i < limits; ++i) {
    line = {format_bytes(cells[i].limit)};
    for (size_t c = 0; c < counts.size(); ++c) {
      const FrontierCell& cell = cells[c * limits + i];
      line.push_back(
          cell.fits ? fmt::format("{:.4g}", static_cast<double>(samples) / cell.step_time.value)
                    : "-");
    }
    table.add(line);
  }
  return table.text("  ");
}

// A line for each plan that stands in the table, where it stands first.
std::string plans_text(const std::vector<FrontierCell>& cells) {
  Table table({Align::Right, Align::Right, Align::Right, Align::Right, Align::Left});
  table.add({"", "each has", "step", "peak", ""});
  std::set<std::pair<size_t, int64_t>> seen;
  for (const FrontierCell& cell : cells) {
    if (!cell.fits || !seen.emplace(cell.found_for_devices, cell.found_for_limit.value).second)
      continue;
    table.add({devices_text(cell.devices), format_bytes(cell.limit), format_seconds(cell.step_time),
               format_bytes(cell.peak),
               degrees_text(cell.degrees) +
                   (cell.degrees.packs ? "" : "; " + memory_methods_text(cell.degrees))});
  }
  return table.text("  ");
}

std::string least_text(const std::vector<FrontierCell>& cells) {
  std::string text;
  for (size_t count : counts_of(cells)) {
    const auto of_count = [&](const FrontierCell& cell) { return cell.devices == count; };
    const auto first = std::ranges::find_if(cells, of_count);
    if (first->fits || !first->least_limit) continue;
    text += fmt::format("  {} with less: nothing was found below {} each\n", devices_text(count),
                        format_bytes(*first->least_limit));
  }
  return text;
}

}  // namespace

std::string device_frontier_text(const std::vector<FrontierCell>& cells, const Machine& machine,
                                 const StepFacts& facts) {
  std::string text =
      fmt::format("{} on {}, {} samples a step: samples/s; simulated, {}, run by {}\n{}",
                  facts.model, machine.name, facts.samples, facts.provenance, facts.runner.name,
                  throughput_text(cells, facts.samples));
  const bool any = std::ranges::any_of(cells, &FrontierCell::fits);
  if (any)
    text +=
        fmt::format("\nplans, each for the least that it is the best for\n{}", plans_text(cells));
  const std::string least = least_text(cells);
  if (!least.empty()) text += "\n" + least;
  return text;
}

nlohmann::ordered_json device_frontier_json(const std::vector<FrontierCell>& cells,
                                            int64_t samples) {
  nlohmann::ordered_json json;
  json["samples"] = samples;
  auto& list = json["cells"] = nlohmann::ordered_json::array();
  for (const FrontierCell& cell : cells) {
    nlohmann::ordered_json entry = {
        {"devices", cell.devices}, {"limit_bytes", cell.limit.value}, {"fits", cell.fits}};
    if (cell.fits) {
      entry["step_time_s"] = cell.step_time.value;
      entry["samples_per_s"] = static_cast<double>(samples) / cell.step_time.value;
      entry["peak_bytes"] = cell.peak.value;
      entry["degrees"] = degrees_json(cell.degrees);
      entry["found_for"] = {{"devices", cell.found_for_devices},
                            {"limit_bytes", cell.found_for_limit.value}};
    } else if (cell.least_limit) {
      entry["least_limit_bytes"] = cell.least_limit->value;
    }
    list.push_back(std::move(entry));
  }
  return json;
}

}  // namespace windlass
