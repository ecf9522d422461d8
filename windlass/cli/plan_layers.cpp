#include "windlass/cli/plan_layers.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/subject.h"
#include "windlass/cost/model_chain.h"
#include "windlass/report/packs_text.h"
#include "windlass/search/packs/network_packs.h"

namespace windlass {
namespace {

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

struct Searched {
  ModelRequest request;
  Machine machine;
  LayerProfile profile;
  LayerSearchResult result;
};

Searched search(const PlanLayersFlags& flags) {
  Searched searched;
  LayerSearchOptions options = options_of(flags);
  if (flags.machine.machine.empty()) fail_input("--on is missing: name a machine, e.g. 4x1080ti");
  if (flags.batch < 1) fail_input("--batch is missing: say how many samples a step has");
  MachineFlags machine_flags = flags.machine;
  if (machine_flags.machine != "local" && machine_flags.devices) {
    options.devices = static_cast<int32_t>(std::clamp<int64_t>(*machine_flags.devices, 0, 1 << 20));
    machine_flags.devices.reset();
  }
  searched.machine = machine_flags.load();
  set_host_memory(searched.machine, flags.host_memory);
  searched.request.source = flags.profile;
  if (flags.model) {
    ModelFlags model = *flags.model;
    model.request.batch = flags.batch;
    searched.request = model.model();
  }
  if (is_layer_profile_file(searched.request.source)) {
    searched.profile = load_layer_profile(searched.request.source);
    searched.result = search_layers(searched.profile, searched.machine, flags.batch, options);
    searched.result.simulated_only = std::string(kNoOps);
    return searched;
  }
  const Model model = load_model(searched.request);
  const auto cost = analytic_cost_model();
  searched.profile =
      chain_of_network(model.graph, searched.request.training, searched.machine, *cost);
  searched.result = search_network_packs(model.graph, searched.request.training, searched.profile,
                                         searched.machine, *cost, flags.batch, options);
  return searched;
}

// Prints, and writes the plan if there is one and it is wanted.
ExitCode report(const PlanLayersFlags& flags, const Searched& searched) {
  const bool fits = searched.result.termination != Termination::Infeasible;
  if (fits && !flags.output.empty())
    write_plan(pack_plan(searched.request, searched.profile, searched.machine, flags.batch,
                         searched.result),
               flags.output);
  fmt::print("{}", packs_report({.model = searched.request.source,
                                 .samples = flags.batch,
                                 .cost = flags.cost,
                                 .searched = true,
                                 .written = flags.output},
                                searched.result, searched.profile.layers(), flags.json));
  return fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace

void set_host_memory(Machine& machine, const std::string& bytes) {
  if (bytes.empty()) return;
  for (Node& node : machine.nodes) node.memory = parse_bytes(bytes);
}

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

ExitCode run_plan_layers(const PlanLayersFlags& flags) { return report(flags, search(flags)); }

std::optional<ExitCode> run_plan_packs_instead(const PlanLayersFlags& flags,
                                               std::optional<double> seconds) {
  try {
    const Searched searched = search(flags);
    const LayerSearchResult& result = searched.result;
    const bool fits = result.termination != Termination::Infeasible;
    if (fits ? seconds && *seconds <= result.step_seconds : seconds || !result.host_needed)
      return std::nullopt;
    return report(flags, searched);
  } catch (const Error& error) {
    // A model that cannot be cut into layers, or devices that are not alike.
    if (error.kind() == ErrorKind::Unsupported) return std::nullopt;
    throw;
  }
}

}  // namespace windlass
