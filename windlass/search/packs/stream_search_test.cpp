#include "windlass/search/packs/stream_search.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/test_data.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/packs/check_packs.h"
#include "windlass/search/packs/synthetic.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/volume.h"

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
