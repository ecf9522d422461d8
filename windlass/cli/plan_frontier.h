// `windlass plan --frontier`: the best plan for each number of devices and each limit.
#pragma once

#include <string>
#include <vector>

#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"

namespace windlass {

struct PlanFrontierFlags {
  const ModelFlags& model;
  const MachineFlags& machine;
  const SearchFlags& search;
  std::string host_memory = {};
  std::vector<std::string> limits = {};  // sizes, or percent of what a device has; empty: quarters
  const SearchMethod* method = nullptr;  // instead of the one that the flags name
  bool json = false;
};

ExitCode run_plan_frontier(const PlanFrontierFlags& flags);

}  // namespace windlass
