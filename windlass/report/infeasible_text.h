// The answer where no plan fits: where it fails, what is alive there, what would help.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/explanation.h"
#include "windlass/report/simulation.h"

namespace windlass {

struct InfeasibleAnswer {
  Bytes limit = {};  // of the first device
  std::optional<Bytes> least_limit = {};
  int64_t tried = 0;           // strategies
  std::string time_cuts = {};  // stages of the search that its time limit has cut, for people
  SimulationReport report;     // of the most frugal strategy
  std::string reason;
  std::vector<Advice> advice;
  bool looked = false;  // for advice: not after Ctrl-C
};

// `decisions`: lines about the most frugal strategy.
std::string infeasible_text(const InfeasibleAnswer& answer, const std::string& decisions);
nlohmann::ordered_json infeasible_json(const InfeasibleAnswer& answer);

}  // namespace windlass
