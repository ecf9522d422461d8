// Ways to save memory around a plan, for its page: what `windlass advise` simulates, for the plan's
// model, machine and runner.
#pragma once

#include <optional>
#include <string>

#include "windlass/cli/progress.h"
#include "windlass/cli/subject.h"
#include "windlass/plan/method_advice.h"

namespace windlass {

struct PlanMethods {
  std::optional<MethodsReport> report;
  std::string why_not;  // why there is none
};

// Without the mixture: the plan itself is one. Optimizer state is shared out as far as the plan
// does it, or, where nothing fits otherwise, all of it, and then on the host. None where prices are
// measured, which would take long, or where the model has one batch only.
PlanMethods methods_beside(const Subject& subject, Pricing& pricing, Progress& progress);

}  // namespace windlass
