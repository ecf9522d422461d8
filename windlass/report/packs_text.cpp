#include "windlass/report/packs_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json packs_json(const std::vector<Pack>& packs) {
  ordered_json list = ordered_json::array();
  for (const Pack& pack : packs) list.push_back({pack.first, pack.last});
  return list;
}

// What Harmony's terms do not say of a plan.
ordered_json strategy_json(const PackStrategy& strategy) {
  ordered_json packs = ordered_json::array();
  for (size_t p = 0; p < strategy.backward_packs.size(); ++p)
    packs.push_back(
        {{"layers", {strategy.backward_packs[p].first, strategy.backward_packs[p].last}},
         {"action", pack_action_name(strategy.actions[p])},
         {"input_on_host", strategy.stash_on_host[p] != 0},
         {"device_update", strategy.device_update[p] != 0},
         {"keep_shares", strategy.keep_shares[p] != 0}});
  return {{"replicas", strategy.replicas},
          {"depth", strategy.depth},
          {"piece_bytes", strategy.piece_bytes},
          {"state_bytes", strategy.state_bytes},
          {"backward_packs", packs}};
}

ordered_json volume_json(const SwapVolume& volume) {
  return {{"weights_bytes", volume.weights},      {"gradients_bytes", volume.gradients},
          {"optimizer_bytes", volume.optimizer},  {"activations_bytes", volume.activations},
          {"total_bytes", volume.swapped()},      {"peer_bytes", volume.peers},
          {"host_message_bytes", volume.messages}};
}

std::string volume_text(const LayerSearchResult& result) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right});
  table.add({"swap volume", "weights", "gradients", "optimizer", "activations", "total", "step"});
  const auto row = [&](const std::string& name, const SwapVolume& volume,
                       std::optional<double> seconds) {
    table.add({name, format_bytes(Bytes(volume.weights)), format_bytes(Bytes(volume.gradients)),
               format_bytes(Bytes(volume.optimizer)), format_bytes(Bytes(volume.activations)),
               format_bytes(Bytes(volume.swapped())),
               seconds ? format_seconds(Seconds(*seconds)) : ""});
  };
  row("this plan", result.volume, result.step_seconds);
  row("the least there can be", result.least, std::nullopt);
  for (const LayerBaseline& baseline : result.baselines)
    row(baseline.name, baseline.volume, baseline.seconds);
  return table.text("  ");
}

std::string packs_text(const LayerSearchResult& result, size_t layers) {
  const HarmonyPlan& plan = result.plan;
  Table table({Align::Left, Align::Right, Align::Right, Align::Left, Align::Left});
  table.add({"task", "device", "layers", "which", ""});
  const bool pipeline = plan.mode == HarmonyMode::Pipeline;
  const auto depth = static_cast<size_t>(result.strategy ? result.strategy->depth : plan.devices);
  size_t task = 0;
  const auto row = [&](const char* kind, Pack pack, std::string what) {
    const bool loss = static_cast<size_t>(pack.last) + 1 == layers;
    table.add({kind, pipeline ? fmt::format("{}", task % depth) : "all",
               fmt::format("{}", pack.last - pack.first + 1),
               fmt::format("{}-{}{}", pack.first, pack.last, loss ? " (loss)" : ""),
               std::move(what)});
    ++task;
  };
  for (const Pack& pack : plan.forward_packs) row("forward", pack, "");
  for (size_t p = plan.backward_packs.size(); p-- > 0;) {
    std::string what;
    if (result.strategy && p + 1 < plan.backward_packs.size())
      what = fmt::format("{}, input on {}", pack_action_name(result.strategy->actions[p]),
                         result.strategy->stash_on_host[p] ? "the host" : "the device");
    if (result.strategy && result.strategy->device_update[p])
      what += fmt::format("{}updated on the device", what.empty() ? "" : ", ");
    if (result.strategy && result.strategy->keep_shares[p] && result.strategy->replicas > 1)
      what += fmt::format("{}shares of weights kept", what.empty() ? "" : ", ");
    row("backward", plan.backward_packs[p], std::move(what));
  }
  return table.text("  ");
}

std::string timeline_text(const LayerSearchResult& result) {
  if (result.timeline.empty()) return "";
  Table table({Align::Left, Align::Left, Align::Left});
  for (const LayerTimeline& line : result.timeline) {
    table.add({line.name, "compute", line.compute});
    table.add({"", "in", line.swap_in});
    table.add({"", "out", line.swap_out});
  }
  return "\n" + table.text("  ") +
         "  (F forward, R recompute, B backward; W weights, G gradients, A activations)\n";
}

ordered_json packs_report_json(const PacksFacts& facts, const LayerSearchResult& result) {
  ordered_json json = {{"termination", termination_name(result.termination)},
                       {"model", facts.model},
                       {"batch", facts.samples},
                       {"cost", facts.cost}};
  const auto search = [&] {
    if (facts.searched)
      json["search"] = {
          {"method", "harmony"}, {"seconds", result.seconds}, {"proposals", result.tried}};
  };
  if (result.termination == Termination::Infeasible) {
    json["reason"] = result.reason;
    if (result.least_limit) json["minimum_limit_bytes"] = *result.least_limit;
    if (result.host_needed) json["minimum_host_bytes"] = *result.host_needed;
    json["host"] = {{"limit_bytes", result.host_limit}};
    search();
    return json;
  }
  json["step_time_s"] = result.step_seconds;
  json["samples_per_s"] = static_cast<double>(facts.samples) / result.step_seconds;
  json["lower_bound_s"] = result.lower_bound;
  json["gap"] = result.gap();
  auto& devices = json["devices"] = ordered_json::array();
  for (const LayerDevice& device : result.devices)
    devices.push_back({{"name", device.name},
                       {"peak_bytes", device.peak_bytes},
                       {"limit_bytes", device.limit_bytes}});
  json["host"] = {{"peak_bytes", result.host_bytes}, {"limit_bytes", result.host_limit}};
  auto& links = json["links"] = ordered_json::array();
  for (const LayerLink& link : result.links)
    links.push_back({{"name", link.name}, {"bytes", link.bytes}});
  json["harmony"] = {{"mode", harmony_mode_name(result.plan.mode)},
                     {"devices", result.plan.devices},
                     {"forward_packs", packs_json(result.plan.forward_packs)},
                     {"backward_packs", packs_json(result.plan.backward_packs)},
                     {"forward_microbatch", result.plan.forward_microbatch},
                     {"backward_microbatch", result.plan.backward_microbatch}};
  if (result.strategy) json["strategy"] = strategy_json(*result.strategy);
  if (result.op_step_seconds)
    json["op_by_op"] = {{"step_time_s", *result.op_step_seconds},
                        {"peak_bytes", *result.op_peak_bytes}};
  if (!result.simulated_only.empty()) json["simulate_only"] = result.simulated_only;
  json["swap"] = volume_json(result.volume);
  json["swap_minimum"] = volume_json(result.least);
  auto& timeline = json["timeline"] = ordered_json::array();
  for (const LayerTimeline& line : result.timeline)
    timeline.push_back({{"device", line.name},
                        {"compute", line.compute},
                        {"swap_in", line.swap_in},
                        {"swap_out", line.swap_out}});
  auto& baselines = json["baselines"] = ordered_json::array();
  for (const LayerBaseline& baseline : result.baselines) {
    ordered_json entry = {{"name", baseline.name}, {"swap", volume_json(baseline.volume)}};
    if (baseline.seconds) entry["step_time_s"] = *baseline.seconds;
    baselines.push_back(std::move(entry));
  }
  search();
  if (!facts.written.empty()) json["plan"] = facts.written;
  return json;
}

std::string infeasible_packs_text(const LayerSearchResult& result) {
  std::string text = fmt::format("no plan fits: {}\n", result.reason);
  if (result.least_limit)
    text += fmt::format("  least limit of each device: {} ({} bytes)\n",
                        format_bytes(Bytes(*result.least_limit)), *result.least_limit);
  if (result.host_needed)
    text += fmt::format("  host memory: {} needed, {} there\n",
                        format_bytes(Bytes(*result.host_needed)),
                        format_bytes(Bytes(result.host_limit)));
  return text;
}

std::string packs_plan_text(const PacksFacts& facts, const LayerSearchResult& result,
                            size_t layers) {
  const HarmonyPlan& plan = result.plan;
  std::string how = plan.mode == HarmonyMode::Pipeline ? "packs go round the devices"
                                                       : "every device runs every pack";
  if (result.strategy && result.strategy->replicas > 1 && result.strategy->depth > 1)
    how = fmt::format("{} pipelines of {} devices", result.strategy->replicas,
                      result.strategy->depth);
  std::string text =
      fmt::format("plan ({}, {} packs forward, {} backward; micro-batches of {} and {} samples)\n",
                  how, plan.forward_packs.size(), plan.backward_packs.size(),
                  plan.forward_microbatch, plan.backward_microbatch);
  text += fmt::format("  step          {} ({:.3g} samples/s), {:.1f} % above the bound of {}\n",
                      format_seconds(Seconds(result.step_seconds)),
                      static_cast<double>(facts.samples) / result.step_seconds,
                      100 * (result.step_seconds / std::max(1e-12, result.lower_bound) - 1),
                      format_seconds(Seconds(result.lower_bound)));
  int64_t peak = 0, limit = 0;
  for (const LayerDevice& device : result.devices)
    if (device.peak_bytes >= peak) {
      peak = device.peak_bytes;
      limit = device.limit_bytes;
    }
  text += fmt::format("  device peak   {} of {}\n", format_bytes(Bytes(peak)),
                      format_bytes(Bytes(limit)));
  text += fmt::format("  host memory   {} of {}\n", format_bytes(Bytes(result.host_bytes)),
                      format_bytes(Bytes(result.host_limit)));
  if (result.op_step_seconds)
    text += fmt::format("  op by op      {} for a step alone, device peak {}\n",
                        format_seconds(Seconds(*result.op_step_seconds)),
                        format_bytes(Bytes(*result.op_peak_bytes)));
  if (!result.simulated_only.empty())
    text += fmt::format("  simulate only {}\n", result.simulated_only);
  if (facts.searched)
    text += fmt::format("  search        {} plans in {}\n", result.tried,
                        format_seconds(Seconds(result.seconds)));
  return text + fmt::format("\n{}\n{}{}", packs_text(result, layers), volume_text(result),
                            timeline_text(result));
}

}  // namespace

std::string packs_report(const PacksFacts& facts, const LayerSearchResult& result, size_t layers,
                         bool json) {
  if (json) return json_text(packs_report_json(facts, result));
  if (result.termination == Termination::Infeasible) return infeasible_packs_text(result);
  std::string text = packs_plan_text(facts, result, layers);
  if (!facts.written.empty()) text += fmt::format("\nwritten to {}\n", facts.written);
  return text;
}

}  // namespace windlass
