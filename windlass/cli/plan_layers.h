// `windlass plan` of a chain of layers: packs of layers that are moved through the devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "windlass/cli/cli.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"

namespace windlass {

// Raw values of the flags.
struct PlanLayersFlags {
  std::string profile;              // path of a layer profile
  std::optional<ModelFlags> model;  // instead: a model, whose layers the cost model prices
  MachineFlags machine;             // `devices`: use so many, on any machine
  std::string host_memory;          // instead of the machine's, such as 128GiB
  int64_t batch = 0;                // samples of a step, of the whole machine
  std::string mode = "auto";        // dp, pp or auto
  std::string cost = "windlass";    // windlass or harmony
  std::string prefetch = "on";      // on or off; of --cost harmony
  std::string output;               // file to write the plan to; empty: none
  bool json = false;
};

// Why a plan for a bare layer profile can be simulated only.
constexpr std::string_view kNoOps = "a layer profile has no ops to carry out";

// --host-memory: instead of the machine's; empty: leave it.
void set_host_memory(Machine& machine, const std::string& bytes);

// Whether the argument is a file with a layer profile. Never throws Error.
bool is_layer_profile_file(const std::string& path);

// For --search auto, where weights do not fit into device memory: packs of the model's layers, if
// they are faster than `seconds`, what the other methods found (nothing: none of them fits). Prints
// and writes as run_plan_layers() does; nothing if packs do not help. Without any other plan, too
// little host memory for packs is an answer as well.
std::optional<ExitCode> run_plan_packs_instead(const PlanLayersFlags& flags,
                                               std::optional<double> seconds);

// Searches and prints. Throws Error{Input} naming the flag that is wrong.
ExitCode run_plan_layers(const PlanLayersFlags& flags);

}  // namespace windlass
