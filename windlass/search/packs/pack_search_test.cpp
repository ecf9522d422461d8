#include "windlass/search/packs/pack_search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_data.h"
#include "windlass/search/packs/partition.h"
#include "windlass/search/packs/random_harmony.h"
#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/volume.h"

namespace windlass {
namespace {

// Calls `visit` with every partition of `layers` layers.
void for_each_partition(int32_t layers,
                        const std::function<void(const std::vector<Pack>&)>& visit) {
  for (uint32_t cuts = 0; cuts < (1u << (layers - 1)); ++cuts) {
    std::vector<Pack> packs{{0, 0}};
    for (int32_t l = 1; l < layers; ++l) {
      if (cuts >> (l - 1) & 1u) packs.push_back({l, l});
      packs.back().last = l;
    }
    visit(packs);
  }
}

TEST(Partition, EqualsBruteForce) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    const auto layers = static_cast<int32_t>(rng.integer(1, 9));
    std::vector<double> weights;
    for (int32_t l = 0; l < layers; ++l) weights.push_back(rng.uniform(0, 10));
    const double limit = rng.uniform(8, 40), border = rng.uniform(0, 5);
    const auto weight = [&](Pack pack) {
      double sum = 0;
      for (int32_t l = pack.first; l <= pack.last; ++l) sum += weights[static_cast<size_t>(l)];
      return sum;
    };
    // Some packs inside of those that fit do not, as with boundary tensors of different sizes.
    const auto cost = [&](Pack pack) {
      const bool odd = (pack.first * 7 + pack.last * 3) % 11 == 0;
      return weight(pack) > limit || odd ? kDoesNotFit : weight(pack) + border;
    };
    const PackCosts costs(layers, cost, [&](Pack pack) { return weight(pack) > limit; });
    std::vector<double> least(static_cast<size_t>(layers), kDoesNotFit);
    double least_sum = kDoesNotFit;
    const auto largest = [&](const std::vector<Pack>& packs) {
      double most = 0;
      for (Pack pack : packs) most = std::max(most, cost(pack));
      return most;
    };
    const auto sum = [&](const std::vector<Pack>& packs) {
      double total = 0;
      for (Pack pack : packs) total += cost(pack);
      return total;
    };
    for_each_partition(layers, [&](const std::vector<Pack>& packs) {
      double& best = least[packs.size() - 1];
      best = std::min(best, largest(packs));
      least_sum = std::min(least_sum, sum(packs));
    });
    for (bool growing : {false, true}) {
      const auto found = min_max_partitions(costs, layers, growing);
      ASSERT_EQ(found.size(), least.size());
      for (size_t s = 0; s < found.size(); ++s) {
        EXPECT_EQ(found[s].empty(), least[s] == kDoesNotFit);
        if (!found[s].empty()) {
          EXPECT_EQ(found[s].size(), s + 1);
          EXPECT_DOUBLE_EQ(largest(found[s]), least[s]);
        }
      }
    }
    const std::vector<Pack> packs = min_sum_partition(costs);
    EXPECT_EQ(packs.empty(), least_sum == kDoesNotFit);
    if (!packs.empty()) {
      EXPECT_NEAR(sum(packs), least_sum, 1e-9);
    }
  }
}

TEST(PackSearch, FitsIsNoSlowerThanHarmonysOwnAndAboveTheBound) {
  Rng rng(11);
  for (int round = 0; round < 12; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(6, 24));
    ChainTables chain(profile);
    const auto devices = static_cast<int32_t>(rng.integer(1, 4));
    const auto mode = rng.chance(0.5) ? HarmonyMode::Data : HarmonyMode::Pipeline;
    const bool prefetch = rng.chance(0.5);
    const int64_t cap = rng.integer(1200, 3000) * 1'000'000;
    PackSearchOptions options;
    options.effort = 300'000;
    const auto result = search_packs(chain, mode, devices, 16, cap, prefetch, options);
    const auto own = harmony_own_search(chain, mode, devices, 16, cap, prefetch);
    if (!result.plan) {
      EXPECT_FALSE(own);
      EXPECT_GT(result.least_limit, cap);
      continue;
    }
    check_harmony_plan(profile, *result.plan, 16);
    EXPECT_LE(harmony_peak_bytes(chain, *result.plan), cap);
    HarmonyEstimator estimator(chain);
    EXPECT_DOUBLE_EQ(estimator.seconds(*result.plan, 16, prefetch), result.seconds);
    EXPECT_LE(result.lower_bound, result.seconds);
    if (own) {
      EXPECT_LE(result.seconds, own->seconds);
    }
    const auto again = search_packs(chain, mode, devices, 16, cap, prefetch, options);
    EXPECT_EQ(*again.plan, *result.plan);
  }
}

// Every plan of a small chain, at the sizes that the search may use.
TEST(PackSearch, IsCloseToTheBestOfAllPlans) {
  Rng rng(5);
  for (int round = 0; round < 4; ++round) {
    const LayerProfile profile = synthetic_profile(rng, 6);
    ChainTables chain(profile);
    HarmonyEstimator estimator(chain);
    const bool prefetch = round % 2 == 0;
    const auto mode = round < 2 ? HarmonyMode::Pipeline : HarmonyMode::Data;
    constexpr int64_t kCap = 1'100'000'000;
    double least = kDoesNotFit;
    HarmonyPlan plan{mode, 2, 1, 1, {}, {}};
    const int64_t samples = samples_of_device(mode, 8, 2);
    for (int64_t ub : {1, 2, 4, 8})
      for (int64_t uf : {1, 2, 4, 8}) {
        if (std::max(ub, uf) > samples) continue;
        plan.forward_microbatch = uf;
        plan.backward_microbatch = ub;
        for_each_partition(6, [&](const std::vector<Pack>& backward) {
          plan.backward_packs = backward;
          const auto consider = [&](const std::vector<Pack>& forward) {
            plan.forward_packs = forward;
            if (harmony_peak_bytes(chain, plan) <= kCap)
              least = std::min(least, estimator.seconds(plan, 8, prefetch));
          };
          if (backward.back().first == 0)
            consider({});
          else
            for_each_partition(backward.back().first, consider);
        });
      }
    PackSearchOptions options;
    options.effort = 4'000'000;
    const auto result = search_packs(chain, mode, 2, 8, kCap, prefetch, options);
    ASSERT_EQ(result.plan.has_value(), least != kDoesNotFit);
    if (result.plan) {
      EXPECT_LE(result.seconds, least * 1.001);
    }
  }
}

TEST(PackSearch, LeastLimitIsEnough) {
  Rng rng(17);
  const LayerProfile profile = synthetic_profile(rng, 12);
  ChainTables chain(profile);
  PackSearchOptions options;
  options.effort = 100'000;
  const auto none = search_packs(chain, HarmonyMode::Pipeline, 2, 8, 1000, true, options);
  EXPECT_FALSE(none.plan);
  const int64_t least = none.least_limit;
  EXPECT_TRUE(search_packs(chain, HarmonyMode::Pipeline, 2, 8, least, true, options).plan);
  EXPECT_FALSE(search_packs(chain, HarmonyMode::Pipeline, 2, 8, least - 1, true, options).plan);
}

// On the released profiles, with 9e9 bytes for every task.
TEST(PackSearchSlow, BeatsReleasedPlansThatFit) {
  const auto folder = test_data("harmony");
  if (!folder) GTEST_SKIP() << "reference data not found; set WINDLASS_DATA";
  struct Bar {
    const char* model;
    int64_t minibatch;
    double seconds;
  };
  for (const Bar& bar :
       {Bar{"bert_96", 16, 6.726}, Bar{"bert_96", 64, 18.43}, Bar{"gpt2_xl", 16, 12.953}}) {
    const LayerProfile profile = load_layer_profile(*folder + "/" + bar.model + ".json");
    ChainTables chain(profile);
    const auto result =
        search_packs(chain, HarmonyMode::Pipeline, 4, bar.minibatch, 9'000'000'000, false);
    ASSERT_TRUE(result.plan);
    EXPECT_LE(result.seconds, bar.seconds) << bar.model << " " << bar.minibatch;
    EXPECT_LE(result.peak_bytes, 9'000'000'000);
  }
}

// Staying below the traffic of Harmony's own plan costs at most a hundredth of the time, and the
// plan is no slower than that one.
TEST(PackSearch, MovesLessWhereThatCostsLittle) {
  Rng rng(12);
  int less = 0;
  for (int round = 0; round < 12; ++round) {
    const LayerProfile profile = synthetic_profile(rng, 16);
    ChainTables chain(profile);
    const HarmonyMode mode = round % 2 == 0 ? HarmonyMode::Pipeline : HarmonyMode::Data;
    const int64_t cap = 3'000'000'000;
    const auto own = harmony_own_search(chain, mode, 2, 16, cap, true);
    if (!own) continue;
    PackSearchOptions options{.effort = 2'000'000};
    const PackSearchResult found = search_packs(chain, mode, 2, 16, cap, true, options);
    ASSERT_TRUE(found.plan);
    EXPECT_LE(found.seconds, own->seconds * (1 + 1e-9));
    EXPECT_NEAR(found.seconds, HarmonyEstimator(chain).seconds(*found.plan, 16, true), 1e-9);
    options.below_harmony = false;
    const PackSearchResult any = search_packs(chain, mode, 2, 16, cap, true, options);
    const auto moves = [&](const HarmonyPlan& plan) {
      return harmony_volume(chain, plan, 16).swapped();
    };
    less += moves(*found.plan) < moves(*any.plan);
    if (moves(*found.plan) > moves(own->plan)) {
      EXPECT_LT(found.seconds, own->seconds / 1.002) << round;
    }
  }
  EXPECT_GE(less, 2);
}

}  // namespace
}  // namespace windlass
