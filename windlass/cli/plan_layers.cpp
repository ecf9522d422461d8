#include "windlass/cli/plan_layers.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/model/layer_profile.h"
#include "windlass/model/model.h"
#include "windlass/search/harmony/model_chain.h"
#include "windlass/search/harmony/search.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

// One of a few words; throws Error{Input} naming the flag.
size_t choice(const char* flag, const std::string& value,
              std::initializer_list<const char*> words) {
  const std::vector<std::string> known(words.begin(), words.end());
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i] == value) return i;
  fail_input("{} {}: expected one of {}{}", flag, printable(value, 40), join(known, ", "),
             did_you_mean(value, known));
}

LayerSearchOptions options_of(const PlanLayersFlags& flags) {
  LayerSearchOptions options;
  const size_t mode = choice("--mode", flags.mode, {"auto", "dp", "pp"});
  if (mode > 0) options.mode = mode == 1 ? HarmonyMode::Data : HarmonyMode::Pipeline;
  options.cost = choice("--cost", flags.cost, {"windlass", "harmony"}) == 0 ? LayerCost::Windlass
                                                                            : LayerCost::Harmony;
  options.prefetch = choice("--prefetch", flags.prefetch, {"off", "on"}) == 1;
  return options;
}

LayerProfile chain_of_model(ModelFlags flags, int64_t batch, const Machine& machine) {
  flags.batch = batch;
  const Model model = load_model(flags.model, flags.model_options());
  return chain_of_network(model.graph, flags.training_options(), machine, *analytic_cost_model());
}

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
         {"input_on_host", strategy.stash_on_host[p] != 0}});
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

ordered_json result_json(const PlanLayersFlags& flags, const LayerSearchResult& result) {
  ordered_json json = {{"termination", termination_name(result.termination)},
                       {"model", flags.model ? flags.model->model : flags.profile},
                       {"batch", flags.batch},
                       {"cost", flags.cost}};
  const auto search = [&] {
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
  json["samples_per_s"] = static_cast<double>(flags.batch) / result.step_seconds;
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
  return json;
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

void print_infeasible(const LayerSearchResult& result) {
  fmt::print("no plan fits: {}\n", result.reason);
  if (result.least_limit)
    fmt::print("  least limit of each device: {} ({} bytes)\n",
               format_bytes(Bytes(*result.least_limit)), *result.least_limit);
  if (result.host_needed)
    fmt::print("  host memory: {} needed, {} there\n", format_bytes(Bytes(*result.host_needed)),
               format_bytes(Bytes(result.host_limit)));
}

void print_plan(const PlanLayersFlags& flags, const LayerSearchResult& result, size_t layers) {
  const HarmonyPlan& plan = result.plan;
  std::string how = plan.mode == HarmonyMode::Pipeline ? "packs go round the devices"
                                                       : "every device runs every pack";
  if (result.strategy && result.strategy->replicas > 1 && result.strategy->depth > 1)
    how = fmt::format("{} pipelines of {} devices", result.strategy->replicas,
                      result.strategy->depth);
  fmt::print("plan ({}, {} packs forward, {} backward; micro-batches of {} and {} samples)\n", how,
             plan.forward_packs.size(), plan.backward_packs.size(), plan.forward_microbatch,
             plan.backward_microbatch);
  fmt::print("  step          {} ({:.3g} samples/s), {:.1f} % above the bound of {}\n",
             format_seconds(Seconds(result.step_seconds)),
             static_cast<double>(flags.batch) / result.step_seconds,
             100 * (result.step_seconds / std::max(1e-12, result.lower_bound) - 1),
             format_seconds(Seconds(result.lower_bound)));
  int64_t peak = 0, limit = 0;
  for (const LayerDevice& device : result.devices)
    if (device.peak_bytes >= peak) {
      peak = device.peak_bytes;
      limit = device.limit_bytes;
    }
  fmt::print("  device peak   {} of {}\n", format_bytes(Bytes(peak)), format_bytes(Bytes(limit)));
  fmt::print("  host memory   {} of {}\n", format_bytes(Bytes(result.host_bytes)),
             format_bytes(Bytes(result.host_limit)));
  fmt::print("  search        {} plans in {}\n\n", result.tried,
             format_seconds(Seconds(result.seconds)));
  fmt::print("{}\n{}{}", packs_text(result, layers), volume_text(result), timeline_text(result));
}

}  // namespace

bool is_layer_profile_file(const std::string& path) {
  constexpr uintmax_t kMost = uintmax_t{256} << 20;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed) || failed) return false;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed || size > kMost) return false;
  std::ifstream file(path, std::ios::binary);
  // Most other files are told apart by their first character.
  if (file.peek() != '{') return false;
  return is_layer_profile(std::string{std::istreambuf_iterator<char>(file), {}});
}

ExitCode run_plan_layers(const PlanLayersFlags& flags) {
  LayerSearchOptions options = options_of(flags);
  if (flags.machine.machine.empty()) fail_input("--on is missing: name a machine, e.g. 4x1080ti");
  if (flags.batch < 1) fail_input("--batch is missing: say how many samples a step has");
  MachineFlags machine_flags = flags.machine;
  if (machine_flags.machine != "local" && machine_flags.devices) {
    options.devices = static_cast<int32_t>(std::clamp<int64_t>(*machine_flags.devices, 0, 1 << 20));
    machine_flags.devices.reset();
  }
  Machine machine = machine_flags.load();
  if (!flags.host_memory.empty())
    for (Node& node : machine.nodes) node.memory = parse_bytes(flags.host_memory);
  const LayerProfile profile = flags.model ? chain_of_model(*flags.model, flags.batch, machine)
                                           : load_layer_profile(flags.profile);
  const LayerSearchResult result = search_layers(profile, machine, flags.batch, options);
  const bool fits = result.termination != Termination::Infeasible;
  if (flags.json)
    fmt::print(
        "{}\n",
        result_json(flags, result).dump(2, ' ', false, ordered_json::error_handler_t::replace));
  else if (fits)
    print_plan(flags, result, profile.layers());
  else
    print_infeasible(result);
  return fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
