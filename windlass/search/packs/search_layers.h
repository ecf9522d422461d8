// Plans for chains of layers larger than device memory: the entry of this folder. A plan says which
// layers form packs, how the samples are cut, and what a step then takes, in time and in bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/machine/machine.h"
#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/harmony_runtime.h"
#include "windlass/search/peers/harmony/volume.h"
#include "windlass/search/search.h"

namespace windlass {

enum class LayerCost : uint8_t {
  Windlass,  // the simulator, on the machine's links
  Harmony,   // Harmony's estimate, with its constants instead of the machine's
};

struct LayerSearchOptions {
  std::optional<HarmonyMode> mode = std::nullopt;  // nothing: whichever is faster
  LayerCost cost = LayerCost::Windlass;
  int32_t devices = 0;   // of the machine, the first so many; 0: all under Harmony's estimate, any
                         // number of them under the simulator
  bool prefetch = true;  // of Harmony's estimate alone
};

// Another way to run the same step on the same machine.
struct LayerBaseline {
  std::string name;
  std::optional<double> seconds;  // nothing if it was not timed
  SwapVolume volume;
};

struct LayerDevice {
  std::string name;
  int64_t peak_bytes = 0;
  int64_t limit_bytes = 0;
};

struct LayerLink {
  std::string name;
  int64_t bytes = 0;
};

// What the devices of one place of the pipelines do during a step, one letter for each of equal
// parts of it: what took most of that part, or a dot if little did.
struct LayerTimeline {
  std::string name;      // of the first device
  std::string compute;   // F forward, R recompute, B backward, . idle
  std::string swap_in;   // W weights, A activations, . idle
  std::string swap_out;  // G gradients, A activations, . idle
};

struct LayerSearchResult {
  Termination termination = Termination::Infeasible;  // Feasible or Infeasible
  HarmonyPlan plan;
  std::optional<PackStrategy> strategy;  // under the simulator: the plan in full
  double step_seconds = 0;
  double lower_bound = 0;            // seconds; no plan under this cost is faster
  std::vector<LayerDevice> devices;  // that are used
  int64_t host_bytes = 0;            // that the plan needs
  int64_t host_limit = 0;            // that the machine has
  std::vector<LayerLink> links;
  std::vector<LayerTimeline> timeline;  // under the simulator
  SwapVolume volume, least;             // of the plan; that no plan can be below
  std::vector<LayerBaseline> baselines;

  // If infeasible: why, and the least limit of each device, or the host memory, that would do.
  std::string reason;
  std::optional<int64_t> least_limit;
  std::optional<int64_t> host_needed;

  int64_t tried = 0;   // plans priced
  double seconds = 0;  // that the search took, baselines not included

  double gap() const { return step_seconds > 0 ? 1 - lower_bound / step_seconds : 0; }
};

// Plans a step over `minibatch` samples. All devices of the machine must be alike and belong to one
// node: Error{Unsupported} otherwise. Throws Error{Input} if the profile knows no micro-batch size
// that cuts the samples, or if there are not so many devices. Deterministic, except for `seconds`.
LayerSearchResult search_layers(const LayerProfile& profile, const Machine& machine,
                                int64_t minibatch, const LayerSearchOptions& options = {});

// What a strategy takes by the simulator: everything of a result but what comes of searching.
// Infeasible, with the reason, if it does not fit the machine. Throws Error{Input} if it is no
// strategy for the chain and the machine, and as search_layers() does.
LayerSearchResult simulate_packs(const LayerProfile& profile, const Machine& machine,
                                 int64_t minibatch, const PackStrategy& strategy);

}  // namespace windlass
