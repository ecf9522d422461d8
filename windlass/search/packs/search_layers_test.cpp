#include "windlass/search/packs/search_layers.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/search/packs/random_harmony.h"
#include "windlass/search/peers/harmony/estimate.h"

namespace windlass {
namespace {

// Four layers of 10, 20, 30 and 0 bytes of weights; 1, 2, 3 and 4 bytes of input a sample.
LayerProfile four_layers() {
  LayerProfile profile;
  profile.weights = {10, 20, 30, 0};
  profile.buffers = {0, 0, 0, 0};
  profile.optimizer = {20, 40, 60, 0};
  profile.input = {1, 2, 3, 4};
  profile.host_update = {0, 0, 0, 0};
  profile.forward = {{1}, {{{1, 1, 1, 1}, {20, 40, 60, 10}}}};
  profile.backward = {{1}, {{{3, 3, 3, 3}, {40, 80, 120, 20}}}};
  return profile;
}

// Pipeline on two devices: tasks F0 F1 B2 B1 B0 on devices 0 1 0 1 0. Weights in: 10 + 20 forward,
// 60 backward, less 20 of layer 1, which device 1 runs last forward and first backward. Stashes of
// layers 0 and 1 for 5 samples, out and in: 2 x 5 x 3, and 5 bytes of samples. Between devices:
// outputs of F0 (2) and F1 (3), gradients of B2 (3) and B1 (2), times 5. Layer 0 is stashed on
// device 0 and read there; layer 1 on device 1.
TEST(HarmonyVolume, HandComputedPipeline) {
  const LayerProfile profile = four_layers();
  const ChainTables chain(profile);
  const HarmonyPlan plan{HarmonyMode::Pipeline,   2, 1, 1, {{0, 0}, {1, 1}},
                         {{0, 0}, {1, 1}, {2, 3}}};
  EXPECT_EQ(harmony_volume(chain, plan, 5), (SwapVolume{70, 60, 0, 35, 50, 0}));
}

// Every one of three devices swaps weights in for both passes, except the loss pack's for one; the
// borders and the stashes of all six samples go out and in.
TEST(HarmonyVolume, HandComputedData) {
  const LayerProfile profile = four_layers();
  const ChainTables chain(profile);
  const HarmonyPlan plan{HarmonyMode::Data, 3, 1, 1, {{0, 1}}, {{0, 1}, {2, 3}}};
  EXPECT_EQ(harmony_volume(chain, plan, 6),
            (SwapVolume{3 * 90, 60, 0, 6 + 2 * 6 * 1 + 2 * 6 * (3 + 3), 2 * 2 * 60, 0}));
  EXPECT_EQ(paging_volume(chain, HarmonyMode::Data, 3, 6, 2).weights, 10 * 3 * 60);
  EXPECT_EQ(least_volume(chain, 6), (SwapVolume{60, 60, 0, 6, 0, 0}));
  EXPECT_EQ(host_bytes(chain, 7), 60 + 60 + 120 + 7);
}

TEST(SearchLayers, AnswersUnderHarmonysEstimate) {
  Rng rng(2);
  const LayerProfile profile = synthetic_profile(rng, 16);
  Machine machine = load_machine("4x1080ti", {.memory = Bytes(3'000'000'000)});
  LayerSearchOptions options{.mode = std::nullopt, .cost = LayerCost::Harmony};
  const LayerSearchResult result = search_layers(profile, machine, 16, options);
  ASSERT_EQ(result.termination, Termination::Feasible);
  check_harmony_plan(profile, result.plan, 16);
  EXPECT_EQ(result.devices.size(), 4u);
  EXPECT_LE(result.devices[0].peak_bytes, 3'000'000'000);
  EXPECT_LE(result.lower_bound, result.step_seconds);
  EXPECT_GE(result.volume.swapped(), result.least.swapped());
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline}) {
    options.mode = mode;
    const LayerSearchResult one = search_layers(profile, machine, 16, options);
    EXPECT_EQ(one.plan.mode, mode);
  }
  options.devices = 2;
  EXPECT_EQ(search_layers(profile, machine, 16, options).plan.devices, 2);
  options.devices = 5;
  EXPECT_THROW(search_layers(profile, machine, 16, options), Error);
}

TEST(SearchLayers, AnswersUnderTheSimulator) {
  Rng rng(2);
  const LayerProfile profile = synthetic_profile(rng, 12);
  Machine machine = load_machine("4x1080ti", {.memory = Bytes(2'000'000'000)});
  LayerSearchOptions options{.mode = HarmonyMode::Data};
  const LayerSearchResult result = search_layers(profile, machine, 16, options);
  ASSERT_EQ(result.termination, Termination::Feasible);
  ASSERT_TRUE(result.strategy);
  check_harmony_plan(profile, result.plan, 16);
  for (const LayerDevice& device : result.devices) EXPECT_LE(device.peak_bytes, device.limit_bytes);
  EXPECT_FALSE(result.links.empty());
  ASSERT_EQ(result.timeline.size(), 1u);
  EXPECT_NE(result.timeline[0].compute.find('F'), std::string::npos);
  EXPECT_NE(result.timeline[0].compute.find('B'), std::string::npos);
  EXPECT_LT(result.timeline[0].compute.find('F'), result.timeline[0].compute.find('B'));
  EXPECT_EQ(result.baselines.size(), 4u);
  for (const LayerBaseline& baseline : result.baselines)
    EXPECT_GE(baseline.seconds.value(), result.step_seconds);

  machine.nodes[0].memory = Bytes(result.host_bytes - 1);
  const LayerSearchResult poor = search_layers(profile, machine, 16, options);
  EXPECT_EQ(poor.termination, Termination::Infeasible);
  EXPECT_EQ(poor.host_needed, result.host_bytes);

  machine = load_machine("4x1080ti", {.memory = Bytes(1'000)});
  const LayerSearchResult small = search_layers(profile, machine, 16, options);
  EXPECT_EQ(small.termination, Termination::Infeasible);
  EXPECT_GT(small.least_limit.value(), 1000);
}

TEST(SearchLayers, SaysWhatWouldDo) {
  Rng rng(2);
  const LayerProfile profile = synthetic_profile(rng, 16);
  LayerSearchOptions options{.mode = std::nullopt, .cost = LayerCost::Harmony};
  Machine machine = load_machine("4x1080ti", {.memory = Bytes(1'000)});
  const LayerSearchResult small = search_layers(profile, machine, 16, options);
  EXPECT_EQ(small.termination, Termination::Infeasible);
  ASSERT_TRUE(small.least_limit);
  EXPECT_FALSE(small.reason.empty());
  machine = load_machine("4x1080ti", {.memory = Bytes(*small.least_limit)});
  EXPECT_EQ(search_layers(profile, machine, 16, options).termination, Termination::Feasible);

  machine = load_machine("4x1080ti");
  machine.nodes[0].memory = Bytes(1'000'000);
  const LayerSearchResult poor = search_layers(profile, machine, 16, options);
  EXPECT_EQ(poor.termination, Termination::Infeasible);
  ASSERT_TRUE(poor.host_needed);
  machine.nodes[0].memory = Bytes(*poor.host_needed);
  EXPECT_EQ(search_layers(profile, machine, 16, options).termination, Termination::Feasible);
}

}  // namespace
}  // namespace windlass
