// Packs of layers that pass through the devices: Harmony's packs, with weights that stream in
// pieces, gradients that leave when they are final, and a choice of what becomes of activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace windlass {

// Consecutive layers, both ends included.
struct Pack {
  int32_t first = 0;
  int32_t last = 0;
  auto operator<=>(const Pack&) const = default;
};

// What the backward pass of a pack starts from.
enum class PackAction : uint8_t {
  Recompute,  // from the pack's input alone
  Keep,       // activations stay on the device
  Offload,    // activations go to the host and come back
};
std::string_view pack_action_name(PackAction action);

// `replicas` pipelines of `depth` devices each, all doing the same on their share of the samples.
// Task t of a pipeline (forward packs ascending, backward packs descending) runs on its device
// t mod depth, over all micro-batches. Device d of replica r is device r * depth + d of the
// machine. Packs are in ascending order without gaps. The last backward pack holds the loss and has
// no forward task: the forward packs end where it begins, and there are none if it is the only one.
struct PackStrategy {
  int32_t replicas = 1;
  int32_t depth = 1;
  int64_t forward_microbatch = 1;
  int64_t backward_microbatch = 1;
  std::vector<Pack> forward_packs;
  std::vector<Pack> backward_packs;
  // By backward pack, the loss's last and Recompute. Keep and Offload need equal micro-batch sizes
  // in both passes, and all forward packs that they share layers with on the same device.
  std::vector<PackAction> actions;
  // By backward pack: whether its input waits on the host. With depth > 1 it always does when
  // another device reads it.
  std::vector<uint8_t> stash_on_host;
  // By backward pack: whether its weights are updated on the device, for which optimizer state
  // comes in and goes out with the weights, instead of the gradients.
  std::vector<uint8_t> device_update;
  // By backward pack: whether replicas keep the share of its weights that they have read for the
  // forward pass, so that the backward pass gathers them without the host. Without effect where the
  // passes are on different devices, or there is one replica.
  std::vector<uint8_t> keep_shares;

  // Weights move in pieces of whole layers, at least so large; a layer of several times as much in
  // several pieces.
  int64_t piece_bytes = int64_t{48} << 20;
  // Most bytes of weights and gradients on a device at once: pieces are loaded ahead, and those of
  // the last packs stay for the backward pass, as far as this goes. At least the largest pack's.
  int64_t state_bytes = 0;
  // False: as Harmony's runtime does it. Whole packs are loaded after the last computation of the
  // task before; all inputs of packs wait on the host; replicas read all weights each and one of
  // them writes the gradients; updates run on the host and end before the next step begins.
  bool streams = true;

  int32_t devices() const { return replicas * depth; }
  size_t tasks() const { return forward_packs.size() + backward_packs.size(); }
  bool operator==(const PackStrategy&) const = default;
};

// Throws Error{Input} unless the strategy is one for a chain of so many layers, a minibatch and a
// machine with so many devices, and its tasks can be counted.
void check_packs(const PackStrategy& strategy, int64_t layers, int64_t minibatch, int64_t devices);

// The same in Harmony's terms.
enum class HarmonyMode : uint8_t {
  Data,      // every device runs every pack on its share of the samples
  Pipeline,  // packs go round the devices, each over all samples
};
std::string_view harmony_mode_name(HarmonyMode mode);  // "dp", "pp"

// Packs are in ascending order without gaps. The last backward pack holds the loss and has no
// forward task: the forward packs end where it begins, and there are none if it is the only one.
// Micro-batch sizes are samples; in Data mode of the share of one device.
struct HarmonyPlan {
  HarmonyMode mode = HarmonyMode::Pipeline;
  int32_t devices = 1;
  int64_t forward_microbatch = 1;
  int64_t backward_microbatch = 1;
  std::vector<Pack> forward_packs = {};
  std::vector<Pack> backward_packs = {};
  bool operator==(const HarmonyPlan&) const = default;
};

// The same packs in Harmony's terms.
HarmonyPlan harmony_plan_of(const PackStrategy& strategy);
// A plan as Harmony's runtime carries it out.
PackStrategy harmony_runtime(const HarmonyPlan& plan);

}  // namespace windlass
