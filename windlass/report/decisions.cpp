#include "windlass/report/decisions.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/machine/device_names.h"
#include "windlass/report/packs_text.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

// "12 of 40 weights on the host, updated there".
std::string residency_text(const Strategy& strategy) {
  const auto count = [&](auto&& wanted) { return std::ranges::count_if(strategy.weights, wanted); };
  const auto hosts = count([](const Residency& r) { return r.host; });
  const auto updates = count([](const Residency& r) { return r.host_update; });
  if (hosts == 0 && updates == 0) return "weights and optimizer state stay on the device";
  std::string text;
  if (hosts > 0)
    text = fmt::format("{} of {} weights rest in host memory and are streamed", hosts,
                       strategy.weights.size());
  else
    text = "weights stay on the device";
  if (updates > 0)
    text += fmt::format("; optimizer state of {} in host memory, updated there", updates);
  return text;
}

// "uses 4 of 7 devices (gpu0..gpu3)", if that is not all of them.
std::string devices_text(const Strategy& strategy, const Machine& machine) {
  const std::vector<DeviceId> used = used_devices(strategy);
  const size_t all = machine.devices.size();
  if (used.size() == all) return "";
  return fmt::format("  uses {} of {} devices ({})", used.size(), all, device_names(machine, used));
}

}  // namespace

std::map<MemoryAction, SavedTotal> saved_totals(const TrainingGraph& training,
                                                const Strategy& strategy) {
  std::map<MemoryAction, SavedTotal> totals;
  for (size_t s = 0; s < training.saved.size(); ++s) {
    SavedTotal& total = totals[strategy.saved[s]];
    ++total.tensors;
    total.bytes += saved_bytes(training, s, strategy.micro_batches);
  }
  return totals;
}

ordered_json decisions_json(const TrainingGraph& training, const Strategy& strategy,
                            const Machine& machine) {
  if (strategy.packs) {
    ordered_json json = packs_json(*strategy.packs);
    json["unused_devices"] = unused_device_names(strategy, machine);
    return json;
  }
  ordered_json saved = ordered_json::object();
  for (const auto& [action, total] : saved_totals(training, strategy))
    saved[std::string(action_name(action))] = {{"tensors", total.tensors},
                                               {"bytes", total.bytes.value}};
  const auto& weights = strategy.weights;
  return {{"micro_batches", strategy.micro_batches},
          {"unused_devices", unused_device_names(strategy, machine)},
          {"saved", saved},
          {"weights_on_host", std::ranges::count_if(weights, &Residency::host)},
          {"updated_on_host", std::ranges::count_if(weights, &Residency::host_update)},
          {"copies_in_turn", strategy.in_turn},
          {"memory_cap_bytes", strategy.memory_cap.value}};
}

std::string decisions_text(const TrainingGraph& training, const Strategy& strategy,
                           const Machine& machine, bool fits) {
  std::string text = devices_text(strategy, machine);
  if (!text.empty()) text += fits ? "; nothing faster was found with the others\n" : "\n";
  if (strategy.packs) return text + packs_text(*strategy.packs);
  text += fmt::format("  {} micro-batch{}; {}{}\n", strategy.micro_batches,
                      strategy.micro_batches == 1 ? "" : "es", residency_text(strategy),
                      strategy.in_turn ? "; copies take turns with kernels" : "");
  text += "  saved for the backward pass:";
  for (const auto& [action, total] : saved_totals(training, strategy))
    text +=
        fmt::format(" {} {} ({})", action_name(action), format_bytes(total.bytes), total.tensors);
  return text + "\n";
}

std::string splits_text(const TrainingGraph& training, const Strategy& strategy) {
  std::map<std::string, int64_t> counts;
  for (size_t i = 0; i < strategy.ops.size(); ++i) {
    const Op& op = training.graph.ops[i];
    const Sharding& sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
    ++counts[fmt::format("{} {}", op_info(op.kind).name,
                         format_sharding(sharding, loops_of(training.graph, op)))];
  }
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [text, count] : counts) sorted.emplace_back(-count, text);
  std::ranges::sort(sorted);
  constexpr size_t kShown = 8;
  std::string text = "  splits:";
  for (size_t i = 0; i < std::min(kShown, sorted.size()); ++i)
    text += fmt::format("{} {} x {}", i == 0 ? "" : ",", -sorted[i].first, sorted[i].second);
  if (sorted.size() > kShown) text += fmt::format(", and {} more", sorted.size() - kShown);
  return text + "\n";
}

std::string frontier_text(const std::vector<FrontierPoint>& frontier) {
  if (frontier.empty()) return "";
  Table table({Align::Right, Align::Right});
  table.add({"limit", "step"});
  for (const FrontierPoint& point : frontier)
    table.add({format_bytes(point.limit), format_seconds(point.step_time)});
  return fmt::format("\nother limits (simulated)\n{}", table.text("  "));
}

}  // namespace windlass
