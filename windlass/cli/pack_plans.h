// Packs of layers at the command line: what reports say of them beside the step, and plan files for
// bare layer profiles, which have no ops and can be simulated only.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/subject.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {

// Whether the argument is a file with a layer profile. Never throws Error.
bool is_layer_profile_file(const std::string& path);

// The layers that a request names: a layer profile, or a model whose layers the cost model prices
// for the machine. Throws Error{Input} as loading does.
LayerProfile load_chain(const ModelRequest& request, const Machine& machine);

// What a report on a step says of packs beside the step: what is decided, and what steps in a row
// take, by layers, where prices of layers go as far as the micro-batches. `json` or "" if the
// subject's strategy is not packs. `baselines`: with what Harmony and demand paging take.
nlohmann::ordered_json with_packs(nlohmann::ordered_json json, const Subject& subject,
                                  const CostModel& cost, bool baselines);
std::string long_run_text_of(const Subject& subject, const CostModel& cost, bool baselines);

// Whether a plan is for a bare layer profile.
bool is_profile_plan(const Plan& plan);

// The plan file of a result that is not infeasible, for a bare layer profile. A plan that was found
// by Harmony's estimate is one for its runtime; Error{Input} if that does not fit by the simulator.
Plan profile_plan(const std::string& path, const LayerProfile& profile, const Machine& machine,
                  int64_t samples, const LayerSearchResult& result);

// What `windlass check` and `windlass simulate` do with such a file. A machine given by flags must
// be the plan's own. `tasks`: print the tasks of a step instead.
ExitCode check_profile_plan(const std::string& path, const MachineFlags& machine, bool json);
ExitCode simulate_profile_plan(const std::string& path, const MachineFlags& machine, bool json,
                               bool tasks);

// `windlass explain` of packs, by layers; nothing if it is another plan.
std::optional<ExitCode> explain_pack_plan(const std::string& path, size_t top, bool json);

}  // namespace windlass
