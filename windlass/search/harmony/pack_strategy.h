// How windlass runs packs of layers: Harmony's packs, with weights that stream in pieces, gradients
// that leave when they are final, and a choice of what becomes of activations.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "windlass/search/harmony/plan.h"

namespace windlass {

// What the backward pass of a pack starts from.
enum class PackAction : uint8_t {
  Recompute,  // from the pack's input alone
  Keep,       // activations stay on the device
  Offload,    // activations go to the host and come back
};
std::string_view pack_action_name(PackAction action);

// `replicas` pipelines of `depth` devices each, all doing the same on their share of the samples.
// Task t of a pipeline (forward packs ascending, backward packs descending) runs on its device
// t mod depth, over all micro-batches. Packs are as in HarmonyPlan. Device d of replica r is device
// r * depth + d of the machine.
struct PackStrategy {
  int32_t replicas = 1;
  int32_t depth = 1;
  int64_t forward_microbatch = 1;
  int64_t backward_microbatch = 1;
  std::vector<Pack> forward_packs;
  std::vector<Pack> backward_packs;
  // By backward pack, the loss's last and without meaning. Keep and Offload need equal micro-batch
  // sizes in both passes; with depth > 1 they need the same device in both.
  std::vector<PackAction> actions;
  // By backward pack: whether its input waits on the host. With depth > 1 it always does when
  // another device reads it.
  std::vector<uint8_t> stash_on_host;

  // Weights move in pieces of whole layers, at least so large.
  int64_t piece_bytes = int64_t{48} << 20;
  // Most bytes of weights and gradients on a device at once: pieces are loaded ahead, and those of
  // the last packs stay for the backward pass, as far as this goes. At least the largest pack's.
  int64_t state_bytes = 0;
  // False: as Harmony's runtime does it. Whole packs are loaded after the last computation of the
  // task before; all inputs of packs wait on the host; replicas read all weights each and one of
  // them writes the gradients; updates end before the next step begins.
  bool streams = true;

  int32_t devices() const { return replicas * depth; }
  bool operator==(const PackStrategy&) const = default;
};

// The same packs in Harmony's terms.
HarmonyPlan harmony_plan_of(const PackStrategy& strategy);
// A plan as Harmony's runtime carries it out.
PackStrategy harmony_runtime(const HarmonyPlan& plan);

}  // namespace windlass
