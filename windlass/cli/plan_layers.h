// `windlass plan` of a chain of layers without ops, and by Harmony's estimate: packs of layers that
// are moved through the devices, to be simulated only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "windlass/cli/cli.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {

struct PlanLayersFlags {
  // A layer profile, or with LayerCost::Harmony a model whose layers the cost model prices.
  ModelFlags model;
  MachineFlags machine;     // `devices`: use so many, on any machine
  std::string host_memory;  // instead of the machine's, such as 128GiB
  LayerSearchOptions search;
  std::string output;  // file to write the plan to; empty: none
  bool json = false;
};

// Searches and prints. Throws Error{Input} naming the flag that is wrong.
ExitCode run_plan_layers(const PlanLayersFlags& flags);

}  // namespace windlass
