#include "windlass/search/packs/stream_search.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/test_data.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/check.h"
#include "windlass/plan/packs/check_packs.h"
#include "windlass/plan/packs/random_chain.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/volume.h"
#include "windlass/sim/reference/naive.h"

namespace windlass {
namespace {

constexpr int64_t kLimit = 9'000'000'000;

// More memory, faster plans; what local search misses is small.
TEST(StreamSearch, MoreMemoryIsNotSlower) {
  Rng rng(6);
  const LayerProfile profile = synthetic_profile(rng, 14);
  ChainTables chain(profile);
  double before = 1e300;
  for (int64_t limit = 1'200'000'000; limit < 6'000'000'000; limit += 600'000'000) {
    const Machine machine = load_machine("4x1080ti", {.memory = Bytes(limit)});
    const StreamSearchResult found = search_streams(chain, machine, 16, limit, {.effort = 400'000});
    if (!found.strategy) continue;
    EXPECT_LE(found.cost.seconds, 1.005 * before) << limit;
    before = std::min(before, found.cost.seconds);
  }
  EXPECT_LT(before, 1e300);
}

// A host that updates slowly: the devices do it themselves.
TEST(StreamSearch, UpdatesOnTheDeviceWhereTheHostIsSlow) {
  Rng rng(7);
  LayerProfile profile = synthetic_profile(rng, 8);
  for (double& seconds : profile.host_update) seconds = 5;
  ChainTables chain(profile);
  const Machine machine = load_machine("4x1080ti", {.memory = Bytes(3'000'000'000)});
  const StreamSearchResult found =
      search_streams(chain, machine, 8, 3'000'000'000, {.effort = 400'000});
  ASSERT_TRUE(found.strategy);
  EXPECT_GT(std::ranges::count(found.strategy->device_update, 1), 0);
  // Seven layers with weights, shared by four replicas.
  EXPECT_LT(found.cost.seconds, 7 * 5 / 4.0);
}

TEST(StreamSearch, FitsAndBeatsHarmonysRuntime) {
  Rng rng(4);
  const LayerProfile profile = synthetic_profile(rng, 20);
  ChainTables chain(profile);
  const Machine machine = load_machine("4x1080ti");
  constexpr int64_t kSmall = 2'000'000'000;
  StreamSearchOptions options;
  options.effort = 200'000;
  const StreamSearchResult found = search_streams(chain, machine, 16, kSmall, options);
  ASSERT_TRUE(found.strategy);
  EXPECT_LE(found.cost.peak_bytes, kSmall);
  EXPECT_LE(found.lower_bound, found.cost.seconds);
  StreamPricer pricer(chain, machine, 16, kSmall);
  const auto own = harmony_own_search(chain, HarmonyMode::Pipeline, 4, 16, kSmall, true);
  ASSERT_TRUE(own);
  EXPECT_LT(found.cost.seconds, pricer.price(harmony_runtime(own->plan)).seconds);
  const StreamSearchResult again = search_streams(chain, machine, 16, kSmall, options);
  EXPECT_EQ(*again.strategy, *found.strategy);

  const StreamSearchResult none = search_streams(chain, machine, 16, 1000, options);
  EXPECT_FALSE(none.strategy);
  EXPECT_TRUE(search_streams(chain, machine, 16, none.least_limit, options).strategy);
}

// What the search returns, on chains, machines and limits of all sorts, holds and stays inside the
// limits by the reference simulator.
TEST(StreamSearch, WhatItReturnsHolds) {
  Rng rng(11);
  int found = 0;
  for (int round = 0; round < 25; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(4, 16));
    ChainTables chain(profile);
    const std::vector<std::string> machines = {"4x1080ti", "8x1080ti", "4x3090", "8xa100-80g"};
    Machine machine = load_machine(machines[static_cast<size_t>(rng.integer(0, 3))],
                                   {.memory = Bytes(rng.integer(6, 40) * 100'000'000)});
    const int64_t minibatch = rng.integer(1, 32);
    const int64_t limit = machine.devices[0].limit.value;
    const StreamSearchResult result =
        search_streams(chain, machine, minibatch, limit,
                       {.devices = static_cast<int32_t>(rng.integer(0, 4)), .effort = 60'000});
    if (!result.strategy) continue;
    ++found;
    PackLowering lowering(chain, machine);
    const PackSteps* steps = lowering.lower(*result.strategy, minibatch, 2);
    ASSERT_TRUE(steps);
    ASSERT_EQ(check_pack_tasks(profile, machine, *result.strategy, minibatch, *steps),
              std::vector<std::string>{})
        << "round " << round;
    const SimResult simulation = simulate_naively(*steps->graph, *steps->times);
    ASSERT_EQ(check_run(*steps->graph, *steps->times, simulation), std::vector<std::string>{})
        << "round " << round;
  }
  EXPECT_GT(found, 15);
}

// On the profiles released with Harmony: faster than its own plans that fit, and with no more
// traffic than the least of them; every plan holds.
class ReleasedProfilesSlow : public testing::TestWithParam<std::pair<const char*, int64_t>> {};

TEST_P(ReleasedProfilesSlow, FasterWithLessTraffic) {
  const auto folder = test_data("harmony");
  if (!folder) GTEST_SKIP() << "reference data not found; set WINDLASS_DATA";
  const auto [model, minibatch] = GetParam();
  const LayerProfile profile = load_layer_profile(fmt::format("{}/{}.json", *folder, model));
  ChainTables chain(profile);
  const Machine machine = load_machine("4x1080ti", {.memory = Bytes(kLimit)});
  StreamPricer pricer(chain, machine, minibatch, kLimit);
  double theirs = 1e300;
  int64_t swapped = INT64_MAX;
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline})
    for (bool prefetch : {false, true}) {
      const auto own = harmony_own_search(chain, mode, 4, minibatch, kLimit, prefetch);
      ASSERT_TRUE(own);
      const StreamCost cost = pricer.price(harmony_runtime(own->plan));
      swapped = std::min(
          {swapped, harmony_volume(chain, own->plan, minibatch).swapped(), cost.volume.swapped()});
      if (cost.fits) theirs = std::min(theirs, cost.seconds);
    }
  const StreamSearchResult found = search_streams(chain, machine, minibatch, kLimit);
  ASSERT_TRUE(found.strategy);
  EXPECT_LT(found.cost.seconds, theirs);
  EXPECT_LE(found.cost.volume.swapped(), swapped);
  const bool small = minibatch == 16 && std::string_view(model) != "vgg416";
  if (small) {
    EXPECT_LE(found.cost.seconds, 0.9 * theirs);
  }

  PackLowering lowering(chain, machine);
  const PackSteps* steps = lowering.lower(*found.strategy, minibatch, 2);
  ASSERT_TRUE(steps);
  EXPECT_EQ(check_pack_tasks(profile, machine, *found.strategy, minibatch, *steps),
            std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Points, ReleasedProfilesSlow,
                         testing::Values(std::pair("bert_96", 16), std::pair("bert_96", 64),
                                         std::pair("bert_96", 256), std::pair("gpt2_xl", 16),
                                         std::pair("gpt2_xl", 64), std::pair("gpt2_xl", 256),
                                         std::pair("vgg416", 16), std::pair("vgg416", 64),
                                         std::pair("vgg416", 256)));

}  // namespace
}  // namespace windlass
