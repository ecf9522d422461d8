#include "windlass/report/json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "windlass/report/labels.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json breakdown_json(const Breakdown& time) {
  const auto seconds = [](Nanoseconds t) { return static_cast<double>(t) * 1e-9; };
  return {{"compute_s", seconds(time.compute)},
          {"recompute_s", seconds(time.recompute)},
          {"communication_s", seconds(time.communication)},
          {"swap_s", seconds(time.swap)},
          {"update_s", seconds(time.update)},
          {"bubble_s", seconds(time.bubble)}};
}

ordered_json tensors_json(const std::vector<AliveTensor>& tensors) {
  ordered_json json = ordered_json::array();
  for (const AliveTensor& tensor : tensors)
    json.push_back({{"name", tensor.name},
                    {"kind", buffer_kind_name(tensor.kind)},
                    {"buffers", tensor.buffers},
                    {"bytes", tensor.bytes.value}});
  return json;
}

int64_t most(const MemoryReport& memory, BufferKind kind) {
  return memory.most[static_cast<size_t>(kind)].value;
}

ordered_json device_json(const MemoryReport& memory, const Device& device) {
  return {{"name", device.name},
          {"peak_bytes", memory.peak.value},
          {"limit_bytes", device.limit.value},
          {"activation_peak_bytes", memory.kept.value},
          {"weight_bytes", most(memory, BufferKind::Weight)},
          {"gradient_bytes", most(memory, BufferKind::WeightGradient)},
          {"optimizer_bytes", most(memory, BufferKind::OptimizerState)}};
}

// What is the same for all devices of a team, once.
ordered_json memory_json(const MemoryReport& memory) {
  ordered_json at_peak;
  for (size_t k = 0; k < kBufferKinds; ++k) {
    std::string name(buffer_kind_name(static_cast<BufferKind>(k)));
    std::replace(name.begin(), name.end(), ' ', '_');
    at_peak[name + "_bytes"] = memory.at_peak[k].value;
  }
  at_peak["workspace_bytes"] = memory.workspace.value;
  return {{"name", memory.name},
          {"count", std::max(memory.devices.size(), memory.hosts.size())},
          {"peak_bytes", memory.peak.value},
          {"limit_bytes", memory.limit.value},
          {"peak_time_s", memory.peak_time.value},
          {"peak_task", memory.peak_task},
          {"at_peak", at_peak},
          {"largest", tensors_json(memory.largest)}};
}

void add_failure(ordered_json& json, const MemoryFailure& failure) {
  json["reason"] = failure_reason(failure);
  if (failure.minimum_limit) json["minimum_limit_bytes"] = failure.minimum_limit->value;
  json["failure"] = {{"memory", failure.memory},
                     {"task", failure.task},
                     {"time_s", failure.time.value},
                     {"limit_bytes", failure.limit.value},
                     {"missing_bytes", failure.missing.value},
                     {"alive", tensors_json(failure.alive)}};
}

}  // namespace

ordered_json degrees_json(const Degrees& degrees) {
  return {{"dp", degrees.dp},
          {"tp", degrees.tp},
          {"pp", degrees.pp},
          {"cp", degrees.cp},
          {"ep", degrees.ep},
          {"zero", degrees.zero},
          {"interleave", degrees.interleave},
          {"micro_batches", degrees.micro_batches},
          {"micro_samples", degrees.micro_samples},
          {"share", degrees.share},
          {"saved_bytes", degrees.saved},
          {"recomputed_bytes", degrees.recomputed},
          {"offloaded_bytes", degrees.offloaded},
          {"compressed_bytes", degrees.compressed},
          {"host_weight_bytes", degrees.host_weights},
          {"host_update_bytes", degrees.host_updates}};
}

ordered_json simulation_json(const SimulationReport& report, const Machine& machine) {
  const StepFacts& facts = report.facts;
  ordered_json json;
  json["termination"] = report.failure ? "out-of-memory" : "done";
  json["model"] = facts.model;
  json["machine"] = facts.machine;
  json["strategy"] = facts.strategy;
  json["provenance"] = "simulated, " + facts.provenance + " cost model";
  json["runner"] = facts.runner.name;
  json["samples"] = facts.samples;
  json["micro_batches"] = facts.micro_batches;
  if (facts.parameters > 0) {
    json["parameters"] = facts.parameters;
    json["bytes_per_parameter"] = report.bytes_per_parameter();
  }
  if (facts.degrees) json["degrees"] = degrees_json(*facts.degrees);
  json["tasks"] = report.tasks;
  if (report.failure) {
    add_failure(json, *report.failure);
  } else {
    json["step_time_s"] = report.step_time.value;
    json["step_overhead_s"] = report.overhead.value;
    if (facts.range) {
      json["step_time_low_s"] = facts.range->first.value;
      json["step_time_high_s"] = facts.range->second.value;
    }
    json["samples_per_s"] = report.samples_per_second();
    if (facts.tokens_per_sample)
      json["tokens_per_s"] =
          report.samples_per_second() * static_cast<double>(*facts.tokens_per_sample);
    json["model_flops"] = facts.model_flops.value;
    json["mfu"] = report.use.mfu;
    json["hfu"] = report.use.hfu;
    json["breakdown"] = breakdown_json(report.mean);
  }
  // Without limits if the step did not fit: what it would take.
  int64_t kept = 0;
  const MemoryReport idle;
  const std::vector<int32_t> memory_of = memory_of_devices(report, machine);
  auto& devices = json["devices"] = ordered_json::array();
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    const MemoryReport& memory =
        memory_of[d] < 0 ? idle : report.memories[static_cast<size_t>(memory_of[d])];
    devices.push_back(device_json(memory, machine.devices[d]));
    if (!is_windlass(facts.runner)) devices.back()["footprint_bytes"] = memory.footprint.value;
    kept = std::max(kept, memory.kept.value);
  }
  json["activation_peak_bytes"] = kept;
  ordered_json hosts = ordered_json::array();
  int64_t host_peak = 0, host_limit = 0;
  auto& memories = json["memories"] = ordered_json::array();
  for (const MemoryReport& memory : report.memories) {
    memories.push_back(memory_json(memory));
    for (NodeId node : memory.hosts) {
      hosts.push_back({{"name", machine[node].name},
                       {"peak_bytes", memory.peak.value},
                       {"limit_bytes", memory.limit.value}});
      if (host_limit == 0 || memory.peak.value > host_peak) {
        host_peak = memory.peak.value;
        host_limit = memory.limit.value;
      }
    }
  }
  json["host"] = {{"peak_bytes", host_peak}, {"limit_bytes", host_limit}};
  json["hosts"] = std::move(hosts);
  if (report.failure) return json;
  auto& teams = json["teams"] = ordered_json::array();
  for (const TeamReport& team : report.teams)
    teams.push_back(
        {{"name", team.name}, {"devices", team.devices}, {"breakdown", breakdown_json(team.time)}});
  auto& links = json["links"] = ordered_json::array();
  for (const LinkReport& link : report.links)
    for (size_t i = 0; i < link.directions.size(); ++i)
      links.push_back({{"name", direction_label(machine, link.directions[i])},
                       {"bytes", link.bytes[i].value},
                       {"busy", link.busy},
                       {"utilisation", link.utilisation}});
  return json;
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace windlass
