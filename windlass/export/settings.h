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
};

// What a system can be told.
struct TargetRules {
  std::string_view name;
  bool tensor = true, pipeline = true, interleave = true;
  int zero_with_pipeline = 3;  // the highest stage of ZeRO beside a pipeline
  std::vector<int> zero = {0, 1, 2, 3};
  bool selective = false;  // recompute within attention
  bool host_states = true, part_of_states = true;
  int host_states_from = 1;  // the lowest stage of ZeRO for that
  bool by_block = false;     // saved tensors by block: keep, recompute, offload
  bool host_weights = true;
  int host_weights_from = 3;  // the lowest stage of ZeRO for that
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

// micro x accumulation x dp = batch; dp x tp x pp devices.
struct TargetSettings {
  int64_t batch = 0, dp = 1, tp = 1, pp = 1, interleave = 1, ep = 1;
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

// Whether the heads of each attention, and the groups of keys, can be shared out equally over so
// many tensor parts, as all these systems want it. Keys of fewer groups than parts are repeated.
bool shares_heads(const Graph& network, int64_t tp);

// Of recompute policies that the target has, the plan's own is taken, else the fastest that fits.
// Throws Error{Unsupported} if the samples cannot be shared out.
TargetChoice choose_settings(const ExportSubject& subject, const TargetRules& rules);

// "the plan takes 945 ms; as deepspeed settings 1.11 s, peak 19.8 GiB, fits", then what is lost, a
// line each.
std::string choice_text(const ExportSubject& subject, const TargetRules& rules,
                        const TargetChoice& choice);

}  // namespace windlass
