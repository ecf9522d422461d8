// What is known of plans of packs of layers, as plain data: what was found, and why it is so. Text
// and JSON are written from this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/plan/termination.h"
#include "windlass/strategy/packs.h"
#include "windlass/task/packs/swap_volume.h"

namespace windlass {

// Why a plan for a bare layer profile can be simulated only.
constexpr std::string_view kNoOps = "a layer profile has no ops to carry out";

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

// What the simulator says of a strategy, in the long run: the time after which everything happens
// again, and the highest peaks until then. (Transfers of the very last step have no other step
// beside them: one that could come earlier has to wait where there is no memory for it yet.)
struct StreamCost {
  bool fits = false;        // into the device's limit; the host is looked at by the caller
  bool came_round = false;  // or steps do not overlap
  double seconds = 0;
  int64_t peak_bytes = 0;  // of the fullest device
  int64_t host_bytes = 0;
  SwapVolume volume;
};

// What the first device of a place in the pipelines does in a step, in seconds.
struct PackTimes {
  std::string device;
  double forward = 0, recompute = 0, backward = 0, update = 0, idle = 0;
};

// A time without computing before a task, and what that waited for at last.
struct PackWait {
  std::string device;
  double seconds = 0;
  std::string before, waits_for;
};

struct PackBytes {
  std::string what;
  int64_t bytes = 0;
};

// One decision changed, everything else as it is, and the window for weights made smaller where
// memory is short and that helps.
struct PackChoice {
  std::string decision;  // "inputs of packs", or "layers 5-9"
  std::string choice;    // "all on the host"
  StreamCost cost;       // without limits if it does not fit
};

struct PackExplanation {
  StreamCost cost;
  int64_t limit = 0;
  std::vector<PackTimes> times;
  std::vector<PackWait> waits;   // the longest
  std::string fullest;           // device
  std::vector<PackBytes> bytes;  // there at its peak, the most first
  std::vector<PackChoice> choices;
  // Of single packs, the fastest ones.
  std::vector<PackChoice> of_packs;
};

}  // namespace windlass
