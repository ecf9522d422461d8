#include "windlass/report/packs_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json ranges_json(const std::vector<Pack>& packs) {
  ordered_json list = ordered_json::array();
  for (const Pack& pack : packs) list.push_back({pack.first, pack.last});
  return list;
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

// `strategy`: null for a plan in Harmony's terms alone.
std::string table_text(const HarmonyPlan& plan, const PackStrategy* strategy) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Left, Align::Left});
  table.add({"task", "device", "layers", "which", ""});
  const bool pipeline = plan.mode == HarmonyMode::Pipeline;
  const auto depth = static_cast<size_t>(strategy ? strategy->depth : plan.devices);
  size_t task = 0;
  const auto row = [&](const char* kind, Pack pack, std::string what) {
    const bool loss = pack.last == plan.backward_packs.back().last;
    table.add({kind, pipeline ? fmt::format("{}", task % depth) : "all",
               fmt::format("{}", pack.last - pack.first + 1),
               fmt::format("{}-{}{}", pack.first, pack.last, loss ? " (loss)" : ""),
               std::move(what)});
    ++task;
  };
  for (const Pack& pack : plan.forward_packs) row("forward", pack, "");
  for (size_t p = plan.backward_packs.size(); p-- > 0;) {
    std::string what;
    if (strategy && p + 1 < plan.backward_packs.size())
      what = fmt::format("{}, input on {}", pack_action_name(strategy->actions[p]),
                         strategy->stash_on_host[p] ? "the host" : "the device");
    if (strategy && strategy->device_update[p])
      what += fmt::format("{}updated on the device", what.empty() ? "" : ", ");
    if (strategy && strategy->keep_shares[p] && strategy->replicas > 1)
      what += fmt::format("{}shares of weights kept", what.empty() ? "" : ", ");
    row("backward", plan.backward_packs[p], std::move(what));
  }
  return table.text("  ");
}

const PackStrategy* strategy_in(const LayerSearchResult& result) {
  return result.strategy ? &*result.strategy : nullptr;
}

// "packs go round the devices, 8 packs forward, 9 backward; micro-batches of 2 and 1 samples".
std::string outline(const HarmonyPlan& plan, const PackStrategy* strategy) {
  std::string how = plan.mode == HarmonyMode::Pipeline ? "packs go round the devices"
                                                       : "every device runs every pack";
  if (strategy && strategy->replicas > 1 && strategy->depth > 1)
    how = fmt::format("{} pipelines of {} devices", strategy->replicas, strategy->depth);
  return fmt::format("{}, {} packs forward, {} backward; micro-batches of {} and {} samples", how,
                     plan.forward_packs.size(), plan.backward_packs.size(), plan.forward_microbatch,
                     plan.backward_microbatch);
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

void add_traffic(ordered_json& json, const LayerSearchResult& result) {
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
  json["harmony"] = harmony_json(result.plan);
  if (result.strategy) json["strategy"] = packs_json(*result.strategy);
  if (facts.bare) json["simulate_only"] = kNoOps;
  add_traffic(json, result);
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

std::string packs_plan_text(const PacksFacts& facts, const LayerSearchResult& result) {
  std::string text = fmt::format("plan ({})\n", outline(result.plan, strategy_in(result)));
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
  if (facts.bare) text += fmt::format("  simulate only {}\n", kNoOps);
  if (facts.searched)
    text += fmt::format("  search        {} plans in {}\n", result.tried,
                        format_seconds(Seconds(result.seconds)));
  return text + fmt::format("\n{}\n{}{}", table_text(result.plan, strategy_in(result)),
                            volume_text(result), timeline_text(result));
}

}  // namespace

ordered_json packs_json(const PackStrategy& packs) {
  ordered_json list = ordered_json::array();
  for (size_t p = 0; p < packs.backward_packs.size(); ++p)
    list.push_back({{"layers", {packs.backward_packs[p].first, packs.backward_packs[p].last}},
                    {"action", pack_action_name(packs.actions[p])},
                    {"input_on_host", packs.stash_on_host[p] != 0},
                    {"device_update", packs.device_update[p] != 0},
                    {"keep_shares", packs.keep_shares[p] != 0}});
  return {{"replicas", packs.replicas},
          {"depth", packs.depth},
          {"piece_bytes", packs.piece_bytes},
          {"state_bytes", packs.state_bytes},
          {"backward_packs", list}};
}

ordered_json harmony_json(const HarmonyPlan& plan) {
  return {{"mode", harmony_mode_name(plan.mode)},
          {"devices", plan.devices},
          {"forward_packs", ranges_json(plan.forward_packs)},
          {"backward_packs", ranges_json(plan.backward_packs)},
          {"forward_microbatch", plan.forward_microbatch},
          {"backward_microbatch", plan.backward_microbatch}};
}

std::string packs_text(const PackStrategy& packs) {
  const HarmonyPlan plan = harmony_plan_of(packs);
  return fmt::format("  {}\n{}", outline(plan, &packs), table_text(plan, &packs));
}

std::string long_run_text(const LayerSearchResult& result) {
  return fmt::format("\nsteps in a row, by layers: {} each, {:.1f} % above the bound of {}\n{}{}",
                     format_seconds(Seconds(result.step_seconds)),
                     100 * (result.step_seconds / std::max(1e-12, result.lower_bound) - 1),
                     format_seconds(Seconds(result.lower_bound)), volume_text(result),
                     timeline_text(result));
}

ordered_json long_run_json(const LayerSearchResult& result) {
  ordered_json json = {{"step_time_s", result.step_seconds},
                       {"lower_bound_s", result.lower_bound},
                       {"gap", result.gap()}};
  add_traffic(json, result);
  return json;
}

std::string packs_report(const PacksFacts& facts, const LayerSearchResult& result, bool json) {
  if (json) return json_text(packs_report_json(facts, result));
  if (result.termination == Termination::Infeasible) return infeasible_packs_text(result);
  std::string text = packs_plan_text(facts, result);
  if (!facts.written.empty()) text += fmt::format("\nwritten to {}\n", facts.written);
  return text;
}

}  // namespace windlass
