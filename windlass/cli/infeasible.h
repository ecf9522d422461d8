// The answer where no plan fits: where it fails, what is alive there, what would help.
#pragma once

#include <string>

#include "windlass/cli/planning.h"
#include "windlass/report/infeasible_text.h"

namespace windlass {

// What the user asked for.
struct InfeasibleRequest {
  const MachineFlags& machine;
  const std::string& host_memory;
  const SearchFlags& search;
  size_t top = 8;
  bool look = true;  // for what helps
};

// Looks for what helps for about 15 seconds at most, and no longer than --time-limit leaves (but a
// tenth of it); Ctrl-C ends it.
InfeasibleAnswer answer_infeasible(const InfeasibleRequest& request, const PlannedSubject& planned,
                                   Pricing& pricing);

}  // namespace windlass
