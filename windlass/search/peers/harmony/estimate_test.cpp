#include "windlass/search/peers/harmony/estimate.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/test_data.h"
#include "windlass/search/packs/random_harmony.h"
#include "windlass/search/peers/harmony/harmony_by_events.h"
#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/packers.h"

namespace windlass {
namespace {

// Two layers and a loss, one size: forward 1 s, recompute and backward 3 s, of the loss 0.5 and 1;
// 4 bytes of weights each (none at the loss), 2 bytes an input.
LayerProfile two_layers() {
  LayerProfile profile;
  profile.weights = {4, 4, 0};
  profile.buffers = {0, 0, 0};
  profile.optimizer = {8, 8, 0};
  profile.input = {2, 2, 2};
  profile.host_update = {5, 1, 0};
  profile.forward = {{1}, {{{1, 1, 0.5}, {6, 6, 2}}}};
  profile.backward = {{1}, {{{3, 3, 1}, {12, 12, 4}}}};
  return profile;
}

// One device, one sample, one byte a second, no time to free. Forward of layer 0, then loss
// with layer 1, then backward of layer 0. Without prefetch nothing overlaps but stash and update:
//  weights 4, input 2, stash 2 (compute waits), forward 1, output 2: 11; freed as the forward ends,
//  at 9. Loss: weights wait for that: [9, 13]; input [13, 15]; recompute 1.5, backward 2.5: 19;
//  gradient out 2: 21; write back 4: 25. Backward of 0: freed 25, weights 29, stash in 31,
//  recompute 32, gradient in 34, backward 2: 36; write back 40; update 5: 45.
TEST(HarmonyEstimate, HandComputedWithoutPrefetch) {
  const LayerProfile profile = two_layers();
  ChainTables chain(profile);
  HarmonyEstimator estimator(chain, {1, 1, 1, 0});
  const HarmonyPlan plan{HarmonyMode::Pipeline, 1, 1, 1, {{0, 0}}, {{0, 0}, {1, 2}}};
  EXPECT_DOUBLE_EQ(estimator.seconds(plan, 1, false), 45);
}

// Forward: input 2, pack 6, output 2, stash 2. Loss pack: 2 x input, no gradient of an output, pack
// 12 + 4 - 2, gradient of the input 2. First pack: 2 x 2 + 2 + 12.
TEST(HarmonyEstimate, HandComputedPeak) {
  const LayerProfile profile = two_layers();
  ChainTables chain(profile);
  HarmonyPlan plan{HarmonyMode::Pipeline, 1, 1, 1, {{0, 0}}, {{0, 0}, {1, 2}}};
  EXPECT_EQ(harmony_peak_bytes(chain, plan), 4 + 14 + 2);
  plan = {HarmonyMode::Pipeline, 1, 1, 1, {}, {{0, 2}}};
  EXPECT_EQ(harmony_peak_bytes(chain, plan), 4 + 12 + 12 + 4 - 4);
}

TEST(HarmonyEstimate, EqualsTheEventGraph) {
  Rng rng(7);
  for (int round = 0; round < 600; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(2, 14));
    ChainTables chain(profile);
    HarmonyEstimator estimator(chain);
    const auto devices = static_cast<int32_t>(rng.integer(1, 4));
    const int64_t minibatch = rng.integer(devices, 24);
    const HarmonyPlan plan = random_plan(rng, chain.layers(), devices);
    check_harmony_plan(profile, plan, minibatch);
    for (bool prefetch : {false, true}) {
      const double slow = harmony_seconds_by_events(chain, plan, minibatch, prefetch);
      EXPECT_NEAR(estimator.seconds(plan, minibatch, prefetch), slow, 1e-9 * slow)
          << "round " << round << " prefetch " << prefetch;
    }
  }
}

TEST(HarmonyEstimate, RefusesPlansThatDoNotCover) {
  const LayerProfile profile = two_layers();
  const auto refused = [&](const HarmonyPlan& plan, int64_t minibatch = 1) {
    try {
      check_harmony_plan(profile, plan, minibatch);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Input;
    }
    return false;
  };
  const HarmonyPlan good{HarmonyMode::Pipeline, 1, 1, 1, {{0, 0}}, {{0, 0}, {1, 2}}};
  EXPECT_FALSE(refused(good));
  EXPECT_FALSE(refused(good, 3));
  HarmonyPlan plan = good;
  plan.backward_packs = {};
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.backward_packs = {{0, 0}, {1, 1}};
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.forward_packs = {{0, 1}};
  EXPECT_TRUE(refused(plan));
  plan = good;
  plan.backward_microbatch = 2;  // not measured, and nothing that large is there at minibatch 1
  EXPECT_FALSE(refused(plan, 1));
  EXPECT_TRUE(refused(plan, 2));
  plan = good;
  plan.mode = HarmonyMode::Data;
  plan.devices = 2;
  EXPECT_TRUE(refused(plan, 1));
}

// The plans released with Harmony, and what its own program says of them.
TEST(HarmonyEstimate, ReproducesReleasedPlans) {
  const auto data = test_data("harmony");
  if (!data) GTEST_SKIP() << "reference data not found; set WINDLASS_DATA";
  const std::filesystem::path folder = *data;
  const auto plans = nlohmann::json::parse(std::ifstream(folder / "reference_plans.json"));
  EXPECT_EQ(plans.size(), 24u);
  for (const auto& entry : plans) {
    const std::string model = entry.at("model");
    const LayerProfile profile = load_layer_profile((folder / (model + ".json")).string());
    ChainTables chain(profile);
    HarmonyEstimator estimator(chain);
    HarmonyPlan plan{.mode = entry.at("mode") == "dp" ? HarmonyMode::Data : HarmonyMode::Pipeline,
                     .devices = entry.at("devices"),
                     .forward_microbatch = entry.at("forward_microbatch"),
                     .backward_microbatch = entry.at("backward_microbatch"),
                     .forward_packs = {},
                     .backward_packs = {}};
    for (const auto& pack : entry.at("forward_packs"))
      plan.forward_packs.push_back({pack.at(0), pack.at(1)});
    for (const auto& pack : entry.at("backward_packs"))
      plan.backward_packs.push_back({pack.at(0), pack.at(1)});
    const int64_t minibatch = entry.at("minibatch");
    check_harmony_plan(profile, plan, minibatch);
    const std::string which = fmt::format("{} {} {}", model, minibatch, std::string(entry["mode"]));
    constexpr double kTolerance = 2e-5;
    EXPECT_NEAR(estimator.seconds(plan, minibatch, false),
                entry.at("estimate_without_prefetch_s").get<double>(), kTolerance)
        << which;
    EXPECT_NEAR(estimator.seconds(plan, minibatch, true),
                entry.at("estimate_with_prefetch_s").get<double>(), kTolerance)
        << which;
    EXPECT_EQ(harmony_peak_bytes(chain, plan), entry.at("printed_peak_bytes").get<int64_t>())
        << which;
  }
}

// The layer that reaches a multiple of the step begins the next pack.
TEST(HarmonyPackers, BordersLieBeforeTheLayerThatReachesTheBar) {
  using Packs = std::vector<Pack>;
  EXPECT_EQ(balanced_packs({1, 1, 1, 1}, 2, true), (Packs{{0, 0}, {1, 3}}));
  EXPECT_EQ(balanced_packs({1, 1, 1, 1}, 1, true), (Packs{{0, 3}}));
  // A total of 11 in two: at 5 if weights are whole numbers, else at 5.5.
  EXPECT_EQ(balanced_packs({3, 2, 1, 5}, 2, true), (Packs{{0, 0}, {1, 3}}));
  EXPECT_EQ(balanced_packs({3, 2, 1, 5}, 2, false), (Packs{{0, 1}, {2, 3}}));
  EXPECT_EQ(balanced_packs({9, 1, 1}, 2, false), Packs{});  // the first would be empty
}

// Those of the released plans that were cut by time: of two devices, all.
TEST(HarmonyPackers, CutAsTheReleasedPlans) {
  const auto data = test_data("harmony");
  if (!data) GTEST_SKIP() << "reference data not found; set WINDLASS_DATA";
  const std::filesystem::path folder = *data;
  const auto packs_of = [](const nlohmann::json& list) {
    std::vector<Pack> packs;
    for (const auto& pack : list) packs.push_back({pack.at(0), pack.at(1)});
    return packs;
  };
  const auto by_time = [](const PassTable& table, const std::vector<Pack>& packs) {
    std::vector<double> seconds;
    for (int32_t l = 0; l <= packs.back().last; ++l)
      seconds.push_back(ChainTables::seconds(table, {l, l}));
    return balanced_packs(seconds, static_cast<int32_t>(packs.size()), false);
  };
  int plans = 0;
  for (const auto& entry : nlohmann::json::parse(std::ifstream(folder / "reference_plans.json"))) {
    if (entry.at("devices") != 2) continue;
    ++plans;
    const std::string model = entry.at("model");
    const LayerProfile profile = load_layer_profile((folder / (model + ".json")).string());
    ChainTables chain(profile);
    const std::vector<Pack> backward = packs_of(entry.at("backward_packs"));
    const std::vector<Pack> forward = packs_of(entry.at("forward_packs"));
    EXPECT_EQ(by_time(chain.backward(entry.at("backward_microbatch")), backward), backward)
        << entry;
    const std::vector<Pack> again(backward.begin(), backward.end() - 1);
    if (forward == again) continue;
    EXPECT_EQ(by_time(chain.forward(entry.at("forward_microbatch")), forward), forward) << entry;
  }
  EXPECT_EQ(plans, 6);
}

}  // namespace
}  // namespace windlass
