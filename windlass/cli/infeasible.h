// The answer where no plan fits: where it fails, what is alive there, what would help.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/cli/planning.h"
#include "windlass/report/simulation.h"
#include "windlass/search/advice/advice.h"

namespace windlass {

// What the user asked for.
struct InfeasibleRequest {
  const MachineFlags& machine;
  const std::string& host_memory;
  const SearchFlags& search;
  size_t top = 8;
};

struct InfeasibleAnswer {
  SimulationReport report;  // of the most frugal strategy
  std::string reason;
  std::vector<Advice> advice;
  bool looked = false;  // for advice: not after Ctrl-C
};

// Looks for what helps for about 15 seconds at most, and no longer than --time-limit leaves (but a
// tenth of it); Ctrl-C ends it.
InfeasibleAnswer answer_infeasible(const InfeasibleRequest& request, const PlannedSubject& planned,
                                   Pricing& pricing);

// `decisions`: lines about the most frugal strategy.
std::string infeasible_text(const InfeasibleAnswer& answer, const PlannedSubject& planned,
                            const std::string& decisions);
nlohmann::ordered_json infeasible_json(const InfeasibleAnswer& answer,
                                       const PlannedSubject& planned);

}  // namespace windlass
