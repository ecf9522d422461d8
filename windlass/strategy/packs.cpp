#include "windlass/strategy/packs.h"

#include <algorithm>
#include <array>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// Of packs and micro-batches together: what can be simulated in a second or so.
constexpr int64_t kMostTasks = 4'000'000;

void check_cover(const std::vector<Pack>& packs, int64_t end, const char* which) {
  int64_t next = 0;
  for (const Pack& pack : packs) {
    if (pack.first != next || pack.last < pack.first || pack.last >= end)
      fail_input(
          "{} packs: [{}, {}] does not follow, expected a pack that begins at layer {} and ends "
          "before layer {}",
          which, pack.first, pack.last, next, end);
    next = int64_t{pack.last} + 1;
  }
  if (next != end) fail_input("{} packs end before layer {}, expected layer {}", which, next, end);
}

// Keep and Offload: what the forward pass leaves behind must be what the backward pass reads.
void check_kept(const PackStrategy& strategy, size_t p) {
  const Pack pack = strategy.backward_packs[p];
  const auto depth = static_cast<size_t>(strategy.depth);
  const size_t reader = (strategy.tasks() - 1 - p) % depth;
  if (strategy.forward_microbatch != strategy.backward_microbatch)
    fail_input("backward pack {}: \"{}\" needs equal micro-batches, found {} and {}", p,
               pack_action_name(strategy.actions[p]), strategy.forward_microbatch,
               strategy.backward_microbatch);
  for (size_t t = 0; t < strategy.forward_packs.size(); ++t) {
    const Pack forward = strategy.forward_packs[t];
    if (forward.first <= pack.last && pack.first <= forward.last && t % depth != reader)
      fail_input("backward pack {}: \"{}\" needs one device in both passes, found {} and {}", p,
                 pack_action_name(strategy.actions[p]), t % depth, reader);
  }
}

}  // namespace

std::string_view pack_action_name(PackAction action) {
  static constexpr std::array<std::string_view, 3> kNames = {"recompute", "keep", "offload"};
  return kNames[static_cast<size_t>(action)];
}

std::string_view harmony_mode_name(HarmonyMode mode) {
  return mode == HarmonyMode::Data ? "dp" : "pp";
}

void check_packs(const PackStrategy& strategy, int64_t layers, int64_t minibatch, int64_t devices) {
  if (strategy.replicas < 1 || strategy.depth < 1 ||
      int64_t{strategy.replicas} * strategy.depth > devices)
    fail_input("{} pipelines of {} devices, the machine has {}", strategy.replicas, strategy.depth,
               devices);
  if (strategy.forward_microbatch < 1 || strategy.backward_microbatch < 1)
    fail_input("micro-batches of {} and {} samples, expected at least one",
               strategy.forward_microbatch, strategy.backward_microbatch);
  if (minibatch < strategy.replicas)
    fail_input("{} samples for {} pipelines, expected at least one each", minibatch,
               strategy.replicas);
  if (strategy.backward_packs.empty()) fail_input("no backward packs, expected at least one");
  check_cover(strategy.backward_packs, layers, "backward");
  check_cover(strategy.forward_packs, strategy.backward_packs.back().first, "forward");
  const size_t packs = strategy.backward_packs.size();
  for (size_t length : {strategy.actions.size(), strategy.stash_on_host.size(),
                        strategy.device_update.size(), strategy.keep_shares.size()})
    if (length != packs) fail_input("what becomes of {} packs, expected all {}", length, packs);
  if (strategy.piece_bytes < 1 || strategy.state_bytes < 0)
    fail_input("pieces of {} bytes in a window of {}", strategy.piece_bytes, strategy.state_bytes);
  const int64_t share = (minibatch + strategy.replicas - 1) / strategy.replicas;
  const auto parts = [&](int64_t size) { return (share + size - 1) / size; };
  const auto count = [](const std::vector<Pack>& list) {
    return static_cast<int64_t>(list.size());
  };
  if (count(strategy.forward_packs) * parts(strategy.forward_microbatch) +
          count(strategy.backward_packs) * parts(strategy.backward_microbatch) >
      kMostTasks)
    fail_input("{} packs on {} samples in micro-batches of {} and {}: more than {} tasks",
               strategy.tasks(), share, strategy.forward_microbatch, strategy.backward_microbatch,
               kMostTasks);
  if (strategy.actions.back() != PackAction::Recompute)
    fail_input("the loss pack: found \"{}\", expected \"recompute\"",
               pack_action_name(strategy.actions.back()));
  for (size_t p = 0; p < packs; ++p) {
    if (strategy.actions[p] != PackAction::Recompute) check_kept(strategy, p);
    if (!strategy.streams &&
        (strategy.actions[p] != PackAction::Recompute || strategy.stash_on_host[p] == 0 ||
         strategy.device_update[p] != 0 || strategy.keep_shares[p] != 0))
      fail_input(
          "backward pack {}: without streaming, packs are recomputed from inputs on the host and "
          "updated there",
          p);
  }
}

HarmonyPlan harmony_plan_of(const PackStrategy& strategy) {
  return {.mode = strategy.depth == 1 ? HarmonyMode::Data : HarmonyMode::Pipeline,
          .devices = strategy.devices(),
          .forward_microbatch = strategy.forward_microbatch,
          .backward_microbatch = strategy.backward_microbatch,
          .forward_packs = strategy.forward_packs,
          .backward_packs = strategy.backward_packs};
}

PackStrategy harmony_runtime(const HarmonyPlan& plan) {
  PackStrategy strategy;
  const bool data = plan.mode == HarmonyMode::Data;
  strategy.replicas = data ? plan.devices : 1;
  const size_t tasks = plan.forward_packs.size() + plan.backward_packs.size();
  strategy.depth =
      data ? 1 : static_cast<int32_t>(std::min(tasks, static_cast<size_t>(plan.devices)));
  strategy.forward_microbatch = plan.forward_microbatch;
  strategy.backward_microbatch = plan.backward_microbatch;
  strategy.forward_packs = plan.forward_packs;
  strategy.backward_packs = plan.backward_packs;
  strategy.actions.assign(plan.backward_packs.size(), PackAction::Recompute);
  strategy.stash_on_host.assign(plan.backward_packs.size(), 1);
  strategy.device_update.assign(plan.backward_packs.size(), 0);
  strategy.keep_shares.assign(plan.backward_packs.size(), 0);
  strategy.piece_bytes = INT64_MAX;
  strategy.state_bytes = INT64_MAX;
  strategy.streams = false;
  return strategy;
}

}  // namespace windlass
