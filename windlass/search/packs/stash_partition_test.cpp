#include "windlass/search/packs/stash_partition.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/search/packs/partition.h"

namespace windlass {
namespace {

struct Chain {
  std::vector<int64_t> bytes, stash;
  int64_t cap = 0;

  int64_t sum(Pack pack) const {
    int64_t total = 0;
    for (int32_t l = pack.first; l <= pack.last; ++l) total += bytes[static_cast<size_t>(l)];
    return total;
  }
  StashCosts costs() const {
    return {.layers = static_cast<int32_t>(bytes.size()),
            .cap = cap,
            .bytes = [this](Pack pack) { return sum(pack); },
            .hopeless = [this](Pack pack) { return sum(pack) > cap; },
            .stash = [this](int32_t l) { return stash[static_cast<size_t>(l)]; },
            .room = [](int32_t) { return int64_t{1}; },
            .cost = [](Pack pack) { return 0.25 + 0.01 * (pack.last - pack.first); },
            .host_cost =
                [this](int32_t l) { return static_cast<double>(stash[static_cast<size_t>(l)]); }};
  }
};

// All cuts and all places, one after the other; -1 if nothing fits.
double brute_force(const Chain& chain) {
  const StashCosts costs = chain.costs();
  const int32_t layers = costs.layers;
  double best = kDoesNotFit;
  for (uint32_t cuts = 0; cuts < (1u << (layers - 1)); ++cuts)
    for (uint32_t host = 0; host < (1u << layers); ++host) {
      double sum = 0;
      int64_t held = 0;
      bool fits = true;
      for (int32_t first = 0; first < layers;) {
        int32_t last = first;
        while (last + 1 < layers && (cuts >> last & 1) == 0) ++last;
        const bool loss = last + 1 == layers, on_host = !loss && (host >> first & 1) != 0;
        const int64_t own = loss ? 0 : on_host ? costs.room(first) : costs.stash(first);
        fits = fits && held + costs.bytes({first, last}) + own <= costs.cap;
        sum += costs.cost({first, last}) + (on_host ? costs.host_cost(first) : 0);
        if (!loss && !on_host) held += costs.stash(first);
        first = last + 1;
      }
      if (fits) best = std::min(best, sum);
    }
  return best;
}

// Multiples of a 64th of the cap are told apart exactly.
TEST(StashPartition, IsTheBestOfAll) {
  Rng rng(8);
  int fitted = 0;
  for (int round = 0; round < 60; ++round) {
    Chain chain;
    chain.cap = 64 * 10;
    for (int64_t l = rng.integer(2, 7); l > 0; --l) {
      chain.bytes.push_back(10 * rng.integer(5, 30));
      chain.stash.push_back(10 * rng.integer(1, 20));
    }
    const StashPartition found = min_stash_partition(chain.costs());
    const double best = brute_force(chain);
    if (best == kDoesNotFit) {
      EXPECT_TRUE(found.packs.empty());
      continue;
    }
    ++fitted;
    ASSERT_FALSE(found.packs.empty());
    EXPECT_NEAR(found.cost, best, 1e-9) << "round " << round;
    // What it returns costs what it says and fits.
    double sum = 0;
    int64_t held = 0;
    int32_t next = 0;
    for (size_t p = 0; p < found.packs.size(); ++p) {
      const Pack pack = found.packs[p];
      ASSERT_EQ(pack.first, next);
      next = pack.last + 1;
      const bool loss = p + 1 == found.packs.size();
      const int64_t stash = chain.stash[static_cast<size_t>(pack.first)];
      EXPECT_LE(held + chain.sum(pack) + (loss ? 0 : found.on_host[p] ? 1 : stash), chain.cap);
      if (!loss && !found.on_host[p]) held += stash;
      sum += 0.25 + 0.01 * (pack.last - pack.first);
      if (found.on_host[p]) sum += static_cast<double>(stash);
    }
    EXPECT_EQ(static_cast<size_t>(next), chain.bytes.size());
    EXPECT_NEAR(sum, found.cost, 1e-9);
  }
  EXPECT_GT(fitted, 30);
}

TEST(StashPartition, NothingFits) {
  const Chain chain{{10, 200, 10}, {1, 1, 1}, 100};
  EXPECT_TRUE(min_stash_partition(chain.costs()).packs.empty());
}

}  // namespace
}  // namespace windlass
