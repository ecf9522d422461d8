#include "windlass/cli/plan_layers.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/packs_text.h"
#include "windlass/cli/subject.h"

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
  ModelRequest request;
  request.source = flags.profile;
  if (flags.model) {
    ModelFlags model = *flags.model;
    model.batch = flags.batch;
    request = request_of(model);
  }
  const LayerProfile profile = load_chain(request, machine);
  const LayerSearchResult result = search_layers(profile, machine, flags.batch, options);
  const bool fits = result.termination != Termination::Infeasible;
  if (fits && !flags.output.empty())
    write_plan(pack_plan(request, profile, machine, flags.batch, result), flags.output);
  report_packs({.model = request.source,
                .samples = flags.batch,
                .cost = flags.cost,
                .searched = true,
                .written = flags.output},
               result, profile.layers(), flags.json);
  return fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
