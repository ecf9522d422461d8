#include "windlass/report/infeasible_text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/labels.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

std::string effect(const Advice& advice) {
  if (!advice.fits) return fmt::format("would need only {}", format_bytes(advice.least_limit));
  return fmt::format("would fit: {} a step, {} samples/s", format_seconds(advice.step_time),
                     rate_label(static_cast<double>(advice.samples) / advice.step_time.value));
}

}  // namespace

std::string infeasible_text(const InfeasibleAnswer& answer, const std::string& decisions) {
  std::string text = fmt::format("no plan fits {}\n", format_bytes(answer.limit));
  if (answer.least_limit)
    text += fmt::format("  least limit: {} ({} bytes), of {} strategies tried\n",
                        format_bytes(*answer.least_limit), answer.least_limit->value, answer.tried);
  if (!answer.time_cuts.empty())
    text += fmt::format(
        "  the time limit cut short: {}; a longer search may find a plan, or a lower least limit\n",
        answer.time_cuts);
  text += fmt::format("  the most frugal one: {}\n{}", answer.reason, decisions);
  if (answer.report.failure) {
    const MemoryFailure& failure = *answer.report.failure;
    Table table({Align::Left, Align::Left, Align::Right});
    for (const AliveTensor& tensor : failure.alive)
      table.add(
          {tensor.name, std::string(buffer_kind_name(tensor.kind)), format_bytes(tensor.bytes)});
    text += fmt::format("\nalive in {} when it fails, {} into the step\n{}", failure.memory,
                        format_seconds(failure.time), table.text("  "));
  }
  if (!answer.looked) return text + "\nNobody looked for what helps.\n";
  if (answer.advice.empty())
    return text + "\nNothing that was tried in the time that was left helps.\n";
  Table table({Align::Left, Align::Left, Align::Left});
  for (const Advice& advice : answer.advice)
    table.add({advice.change, advice.flags,
               effect(advice) + (advice.same_result ? "" : "; not the same training")});
  return text + "\nwhat helps, each searched for a short time\n" + table.text("  ");
}

ordered_json infeasible_json(const InfeasibleAnswer& answer) {
  ordered_json json = {{"termination", "infeasible"}, {"model", answer.report.facts.model}};
  json["limit_bytes"] = answer.limit.value;
  if (answer.least_limit) json["minimum_limit_bytes"] = answer.least_limit->value;
  json["reason"] = answer.reason;
  if (!answer.time_cuts.empty()) json["time_limit_cut"] = answer.time_cuts;
  if (answer.report.failure) {
    const MemoryFailure& failure = *answer.report.failure;
    ordered_json alive = ordered_json::array();
    for (const AliveTensor& tensor : failure.alive)
      alive.push_back({{"name", tensor.name},
                       {"kind", buffer_kind_name(tensor.kind)},
                       {"buffers", tensor.buffers},
                       {"bytes", tensor.bytes.value}});
    json["failure"] = {{"memory", failure.memory},
                       {"task", failure.task},
                       {"time_s", failure.time.value},
                       {"limit_bytes", failure.limit.value},
                       {"missing_bytes", failure.missing.value},
                       {"alive", alive}};
  }
  auto& list = json["advice"] = ordered_json::array();
  for (const Advice& advice : answer.advice) {
    ordered_json entry = {{"change", advice.change},
                          {"flags", advice.flags},
                          {"fits", advice.fits},
                          {"samples", advice.samples},
                          {"same_training", advice.same_result}};
    if (advice.fits)
      entry["step_time_s"] = advice.step_time.value;
    else
      entry["minimum_limit_bytes"] = advice.least_limit.value;
    list.push_back(std::move(entry));
  }
  return json;
}

}  // namespace windlass
