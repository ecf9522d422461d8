#include "windlass/cli/plan_layers.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/planning.h"
#include "windlass/report/packs_text.h"

namespace windlass {

ExitCode run_plan_layers(const PlanLayersFlags& flags) {
  const ModelRequest& given = flags.model.request;
  const bool bare = is_layer_profile_file(given.source);
  if (flags.machine.machine.empty()) fail_input("--on is missing: name a machine, e.g. 4x1080ti");
  if (!given.batch) fail_input("--batch is missing: say how many samples a step has");
  if (!bare && !flags.output.empty())
    fail_input(
        "-o: of what Harmony's estimate finds, plans for layer profiles are written; use --cost "
        "windlass for a network");
  MachineFlags machine_flags = flags.machine;
  LayerSearchOptions options = flags.search;
  if (machine_flags.machine != "local" && machine_flags.devices) {
    options.devices = static_cast<int32_t>(std::clamp<int64_t>(*machine_flags.devices, 0, 1 << 20));
    machine_flags.devices.reset();
  }
  Machine machine = machine_flags.load();
  set_host_memory(machine, flags.host_memory);
  const LayerProfile profile = load_chain(bare ? given : flags.model.model(), machine);
  const LayerSearchResult result = search_layers(profile, machine, *given.batch, options);
  const bool fits = result.termination != Termination::Infeasible;
  if (fits && !flags.output.empty())
    write_plan(profile_plan(given.source, profile, machine, *given.batch, result), flags.output);
  fmt::print("{}",
             packs_report({.model = given.source,
                           .bare = bare,
                           .samples = *given.batch,
                           .cost = options.cost == LayerCost::Windlass ? "windlass" : "harmony",
                           .searched = true,
                           .written = flags.output},
                          result, flags.json));
  return fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
