// `windlass plan` of a chain of layers: packs of layers that are moved through the devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "windlass/cli/cli.h"
#include "windlass/cli/machine.h"
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

// Whether the argument is a file with a layer profile. Never throws Error.
bool is_layer_profile_file(const std::string& path);

// Searches and prints. Throws Error{Input} naming the flag that is wrong.
ExitCode run_plan_layers(const PlanLayersFlags& flags);

}  // namespace windlass
