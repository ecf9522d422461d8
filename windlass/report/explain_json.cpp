#include <nlohmann/json.hpp>

#include "windlass/graph/micro_batch.h"
#include "windlass/report/explain_text.h"
#include "windlass/report/json.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json outcome_json(const Explained& explained, const Outcome& outcome) {
  ordered_json json = {
      {"fits", outcome.fits},
      {"step_time_s", outcome.step_time.value},
      {"step_time_difference_s", outcome.step_time.value - explained.plan.step_time.value},
      {"peak_bytes", outcome.peak.value},
      {"peak_difference_bytes", outcome.peak.value - explained.plan.peak.value},
      {"host_peak_bytes", outcome.host_peak.value}};
  if (!outcome.fits) json["obstacle"] = outcome.obstacle;
  return json;
}

ordered_json alternatives_json(const Explained& explained, const std::vector<Alternative>& others) {
  ordered_json list = ordered_json::array();
  for (const Alternative& other : others) {
    ordered_json json = {{"decision", other.decision},
                         {"choice", other.choice},
                         {"possible", other.impossible.empty()},
                         {"changes_mathematics", !other.same_result}};
    if (other.one)
      json.update(outcome_json(explained, *other.one));
    else
      json["reason"] = other.impossible;
    if (other.all) json["all_alike"] = outcome_json(explained, *other.all);
    list.push_back(std::move(json));
  }
  return list;
}

ordered_json head_json(const Explained& explained) {
  const StepFacts& facts = explained.report.facts;
  const MemoryReport& device = tightest(explained.report);
  return {{"model", facts.model},
          {"machine", facts.machine},
          {"runner", facts.runner.name},
          {"samples", facts.samples},
          {"micro_batches", facts.micro_batches},
          {"fits", explained.plan.fits},
          {"step_time_s", explained.plan.step_time.value},
          {"peak_bytes", explained.plan.peak.value},
          {"host_peak_bytes", explained.plan.host_peak.value},
          {"limit_bytes", device.limit.value},
          {"free_bytes", device.limit.value - device.peak.value}};
}

}  // namespace

ordered_json overview_json(const Explained& explained, const std::vector<Alternative>& others) {
  const Strategy& strategy = explained.strategy;
  ordered_json json = head_json(explained);
  const ordered_json simulated = simulation_json(explained.report, explained.machine);
  if (simulated.contains("breakdown")) json["breakdown"] = simulated["breakdown"];
  const std::string& fullest = tightest(explained.report).name;
  for (const ordered_json& memory : simulated["memories"])
    if (memory["name"] == fullest) json["fullest"] = memory;
  ordered_json saved = ordered_json::object();
  for (size_t s = 0; s < strategy.saved.size(); ++s) {
    ordered_json& entry = saved[std::string(action_name(strategy.saved[s]))];
    if (entry.is_null()) entry = {{"tensors", 0}, {"bytes", 0}};
    entry["tensors"] = entry["tensors"].get<int64_t>() + 1;
    entry["bytes"] = entry["bytes"].get<int64_t>() +
                     saved_bytes(explained.training, s, strategy.micro_batches).value;
  }
  ordered_json stages = ordered_json::array();
  for (const Stage& stage : strategy.stages)
    stages.push_back({{"ops", stage.last - stage.first},
                      {"devices", strategy.groups[static_cast<size_t>(stage.group)].size()}});
  int64_t on_host = 0, updated = 0;
  for (const Residency& weight : strategy.weights) {
    on_host += weight.host ? 1 : 0;
    updated += weight.host_update ? 1 : 0;
  }
  json["structure"] = {{"schedule", schedule_name(strategy.schedule)},
                       {"stages", stages},
                       {"unused_devices", unused_device_names(strategy, explained.machine)},
                       {"saved", saved},
                       {"weights", strategy.weights.size()},
                       {"weights_on_host", on_host},
                       {"updated_on_host", updated}};
  json["alternatives"] = alternatives_json(explained, others);
  return json;
}

ordered_json op_json(const Explained& explained, OpId id, const OpParts& parts,
                     const std::vector<Alternative>& others, size_t alike) {
  const Op& op = explained.training.graph[id];
  ordered_json json = head_json(explained);
  json["op"] = op.name;
  json["kind"] = op_info(op.kind).name;
  json["sharding"] = format_sharding(
      explained.strategy.shardings[static_cast<size_t>(explained.strategy.ops[id.index()])],
      loops_of(explained.training.graph, op));
  json["alike"] = alike;
  auto& work = json["work"] = ordered_json::array();
  for (const OpWork& entry : parts.work)
    work.push_back({{"pass", task_kind_name(entry.kind)},
                    {"runs", entry.runs},
                    {"each_s", entry.each.value},
                    {"total_s", entry.total.value}});
  auto& moves = json["exchanges"] = ordered_json::array();
  for (const OpMove& move : parts.moves)
    moves.push_back({{"kind", task_kind_name(move.kind)},
                     {"tensor", move.tensor},
                     {"runs", move.runs},
                     {"bytes", move.bytes.value},
                     {"total_s", move.total.value}});
  json["alternatives"] = alternatives_json(explained, others);
  return json;
}

ordered_json tensor_json(const Explained& explained, const TensorChoice& choice,
                         const TensorParts& parts, const std::vector<Alternative>& others) {
  const Tensor& tensor = explained.training.graph[choice.tensor];
  ordered_json json = head_json(explained);
  json["tensor"] = tensor.name;
  json["role"] = role_name(tensor.role);
  json["bytes"] = choice.bytes.value;
  if (!choice.choice.empty()) json["choice"] = choice.choice;
  json["alike"] = choice.alike;
  json["most_on_device_bytes"] = parts.most_on_device.value;
  json["at_peak_bytes"] = parts.at_peak.value;
  auto& stays = json["stays"] = ordered_json::array();
  for (const TensorStay& stay : parts.stays)
    stays.push_back({{"memory", stay.memory},
                     {"kind", buffer_kind_name(stay.kind)},
                     {"bytes", stay.bytes.value},
                     {"begin_s", stay.begin.value},
                     {"end_s", stay.end.value}});
  json["why"] = why(explained, choice, others);
  json["alternatives"] = alternatives_json(explained, others);
  return json;
}

}  // namespace windlass
