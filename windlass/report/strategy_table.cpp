#include "windlass/report/strategy_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/machine/device_names.h"

namespace windlass {

void StrategyRow::fill(const SimulatedStep& step) {
  fits = step.result.status == SimStatus::Done;
  step_time = step.step_time();
  for (size_t m = 0; m < step.tasks.memories.size(); ++m) {
    const int64_t bytes = step.whole().peaks[m].bytes;
    int64_t& most = step.tasks.memories[m].team.valid() ? peak : host_peak;
    most = std::max(most, bytes);
  }
}

std::string strategy_table_text(const std::vector<StrategyRow>& rows, const StrategyRow& found,
                                const Machine& machine, const StepFacts& facts) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Left});
  table.add({"", "step", "samples/s", "peak", "against windlass", ""});
  const auto add = [&](const StrategyRow& row) {
    if (!row.why.empty()) return table.add({row.name, "-", "-", "-", "-", row.why});
    table.add({row.tuned ? row.name + " (tuned)" : row.name, format_seconds(row.step_time),
               fmt::format("{:.2f}", static_cast<double>(facts.samples) / row.step_time.value),
               format_bytes(Bytes(row.peak)),
               fmt::format("{:.2f}x", row.step_time / found.step_time),
               row.fits ? "" : "does not fit"});
  };
  add(found);
  for (const StrategyRow& row : rows) add(row);
  return fmt::format("{} on {}, {} samples a step, {} a device; simulated, {}, run by {}\n{}",
                     facts.model, machine.name, facts.samples, limit_text(machine),
                     facts.provenance, facts.runner.name, table.text("  "));
}

nlohmann::ordered_json strategy_table_json(const std::vector<StrategyRow>& rows,
                                           const StrategyRow& found, int64_t samples,
                                           Termination termination) {
  const auto entry = [&](const StrategyRow& row) {
    nlohmann::ordered_json json = {
        {"strategy", row.name}, {"tuned", row.tuned}, {"possible", row.why.empty()}};
    if (!row.why.empty()) {
      json["reason"] = row.why;
      return json;
    }
    json["valid"] = row.fits;
    json["step_time_s"] = row.step_time.value;
    json["samples_per_s"] = static_cast<double>(samples) / row.step_time.value;
    json["peak_bytes"] = row.peak;
    json["host_peak_bytes"] = row.host_peak;
    return json;
  };
  nlohmann::ordered_json json;
  json["termination"] = termination_name(termination);
  json["windlass"] = entry(found);
  auto& list = json["strategies"] = nlohmann::ordered_json::array();
  for (const StrategyRow& row : rows) list.push_back(entry(row));
  return json;
}

}  // namespace windlass
