// A plan in terms of another system: the settings nearest to it that the system has, what is lost
// on the way, and what the simulator says of the settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/plan/degrees.h"
#include "windlass/plan/plan.h"
#include "windlass/strategy/baselines.h"
#include "windlass/strategy/target_rules.h"

namespace windlass {

// A plan, loaded. All of it outlives the export.
struct ExportSubject {
  const Plan& plan;
  const Graph& network;  // of the whole batch
  const TrainingGraph& training;
  const Strategy& strategy;
  const Machine& machine;
  const CostModel& cost;
  Seconds step_time;  // of the plan, in the same simulator
  // By measured kernels; the time above, and what settings take, then goes by kernels like them.
  std::optional<Seconds> measured_step = {};
  // The network without slots for the rows of experts, if the plan's has them: other systems have
  // no such slots.
  const Graph* without_slots = nullptr;
};

// Something the plan decides and the settings do not say.
struct LostDecision {
  std::string what;     // "42 % of what the backward pass reads is moved to the host, by tensor"
  std::string instead;  // "kept on the device"
  // The plan with this one thing changed, in the simulator; none: it cannot be simulated alone.
  std::optional<Seconds> step_time = {};
  std::optional<Bytes> peak = {};  // of the fullest device
  bool fits = true;
};

// micro x accumulation x dp = batch; dp x tp x pp x cp devices, of which ep divides dp.
struct TargetSettings {
  int64_t batch = 0, dp = 1, tp = 1, pp = 1, cp = 1, interleave = 1, ep = 1;
  bool sequence = false;  // beside tp: norms are split along positions
  int64_t micro = 1, accumulation = 1;
  int zero = 0;
  RecomputePolicy recompute = RecomputePolicy::None;
  double host_states = 0;  // share of the optimizer's state that is updated on the host
  bool host_weights = false;
  int64_t layers = 0;                 // equal blocks of the network, that pipelines are cut between
  std::vector<int64_t> stage_layers;  // of each stage, in order; empty without a pipeline
  DType dtype = DType::F32;           // of weights
  OptimizerKind optimizer = OptimizerKind::Adam;
  double clip_norm = 0;
  std::optional<int64_t> tokens = {};  // of a sample

  // Whether replicas hold parts of the weights or of their gradients only, or the host holds them.
  bool shards_weights() const { return host_weights || (zero >= 2 && dp * cp > 1); }
  int64_t devices() const { return dp * tp * pp * cp; }
};

struct TargetChoice {
  TargetSettings settings;
  std::vector<LostDecision> lost;
  // The settings in the simulator: what windlass would do if told the same.
  std::optional<Seconds> step_time = {};
  std::optional<Bytes> peak = {};
  bool fits = false;
  std::string unsimulated = {};  // why not
};

// What most bytes that ops [first, last) save do, if all of them have to do the same: kept,
// computed again, or moved to the host.
MemoryAction block_action(const ExportSubject& subject, size_t first, size_t last);

// The plan with what blocks save treated alike (kept, offloaded, or computed again from what the
// block before hands on), and all weights as the settings have them.
Strategy blocks_alike(const ExportSubject& subject, const TargetSettings& settings);

// Blocks that repeat most are the layers.
struct LayerStages {
  int64_t layers = 0;
  std::vector<int64_t> of_stage = {};  // layers of each stage; empty without a pipeline
  bool within = false;                 // stages of the plan end within a layer, or have none
};
LayerStages layers_of_stages(const ExportSubject& subject, int64_t pp, int64_t interleave);

// The settings as a strategy that windlass can simulate.
BaselineSpec spec_of_settings(const TargetSettings& settings, const TargetRules& rules);

// Whether there are norms that could be split along positions.
bool has_norms(const ExportSubject& subject);
// Whether the norms of the network are split along positions into more than `cp` parts, over those
// that tensors have as well.
bool splits_norms(const ExportSubject& subject, int64_t cp);

// Of recompute policies that the target has, the plan's own is taken, else the fastest that fits.
// Throws Error{Unsupported} if the plan's replicas have unequal numbers of samples.
TargetChoice choose_settings(const ExportSubject& subject, const TargetRules& rules);

// "the plan takes 945 ms; as deepspeed settings 1.11 s, peak 19.8 GiB, fits", then what is lost, a
// line each.
std::string choice_text(const ExportSubject& subject, const TargetRules& rules,
                        const TargetChoice& choice);

}  // namespace windlass
