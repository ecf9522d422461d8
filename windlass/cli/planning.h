// What the verbs plan, compare and train share: finding a plan for a model on a machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/cli/progress.h"
#include "windlass/cli/search_flags.h"
#include "windlass/cli/subject.h"
#include "windlass/report/strategy_table.h"
#include "windlass/search/search.h"

namespace windlass {

struct PlannedSubject {
  Subject subject;      // with the strategy that was found, or the one that needs least
  SearchResult search;  // without training graph and strategy: those are the subject's
  SimulatedStep step;   // of that strategy, limits enforced
  bool fits = false;
  std::string method;                // of the search that was used
  std::optional<Seconds> measuring;  // what it took to measure kernels, if any were asked for
};

struct PlanningOptions {
  SearchFlags search = {};
  std::string from = {};                 // a plan file to start from
  const SearchMethod* method = nullptr;  // instead of the one that the flags name
};

// Systems that settings can be searched for, as `export --to` names them.
std::vector<std::string> search_targets();
// The search for one of them; null if the name is empty.
const SearchMethod* target_method(std::string_view target);

// Loads the model, searches, simulates what was found. `pricing` must be the one for the machine.
// Ctrl-C ends the search with the best so far. If the flags leave the batch open, it is chosen.
PlannedSubject plan_subject(const ModelFlags& model, Machine machine, Pricing& pricing,
                            const PlanningOptions& options);

// What a named strategy takes, or why it is not possible.
StrategyRow baseline_row(const std::string& name, const Graph& graph, const Machine& machine,
                         const TrainingOptions& training, Pricing& pricing);
// What users of the machine would try, and what these strategies come to when they are tuned.
// Settings are tuned by figures; where kernels are measured, it is those of the best settings.
std::vector<StrategyRow> usual_rows(const Subject& subject, Pricing& pricing, Progress& progress);

// --host-memory: instead of the machine's; empty: leave it.
void set_host_memory(Machine& machine, const std::string& bytes);

// The plan file of a subject and its simulated step.
Plan plan_of(const Subject& subject, const SimulatedStep& step, const std::string& termination,
             const std::string& method, Pricing& pricing, uint64_t seed = 0);

}  // namespace windlass
