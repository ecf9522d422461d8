// What the verbs plan and train share: finding a plan for a model on a machine.
#pragma once

#include <optional>
#include <string>

#include "windlass/cli/subject.h"
#include "windlass/search/search.h"

namespace windlass {

struct PlannedSubject {
  Subject subject;      // with the strategy that was found, or the one that needs least
  SearchResult search;  // without training graph and strategy: those are the subject's
  SimulatedStep step;   // of that strategy, limits enforced
  bool fits = false;
  std::string method;  // of the search that was used
};

struct PlanningOptions {
  std::string method = "auto";  // of the search
  Seconds time_limit{60};
  int64_t micro_batches = 0;  // the only number to try; 0: any
  int threads = 0;            // of the search; 0: all cores
};

// Loads the model, searches, simulates what was found. `pricing` must be the one for the machine.
PlannedSubject plan_subject(const ModelFlags& model, Machine machine, Pricing& pricing,
                            const PlanningOptions& options);

// The plan file of a subject and its simulated step.
Plan plan_of(const Subject& subject, const SimulatedStep& step, const std::string& termination,
             const std::string& method, Pricing& pricing);

}  // namespace windlass
