// Plan files of packs of layers: made, checked and simulated.
#pragma once

#include <optional>
#include <string>

#include "windlass/cli/cli.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/plan/plan.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {

// The layers that a request names: a layer profile, or a model whose layers the cost model prices
// for the machine. Throws Error{Input} as loading does.
LayerProfile load_chain(const ModelRequest& request, const Machine& machine);

// The plan file of a result that is not infeasible. A plan that was found by Harmony's estimate is
// one for its runtime; Error{Input} if that does not fit by the simulator.
Plan pack_plan(const ModelRequest& request, const LayerProfile& profile, const Machine& machine,
               int64_t samples, const LayerSearchResult& result);

// What `windlass check`, `windlass simulate` and `windlass explain` do with such a file; nothing if
// it is another plan. A machine given by flags must be the plan's own. `tasks`: print the tasks of
// a step instead.
std::optional<ExitCode> check_pack_plan(const std::string& path, const MachineFlags& machine,
                                        bool json);
std::optional<ExitCode> simulate_pack_plan(const std::string& path, const MachineFlags& machine,
                                           bool json, bool tasks);
std::optional<ExitCode> explain_pack_plan(const std::string& path, size_t top, bool json);

}  // namespace windlass
