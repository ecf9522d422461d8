#include "windlass/search/peers/paging/paging.h"

#include <algorithm>
#include <list>
#include <map>

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/packs/random_chain.h"

namespace windlass {
namespace {

// Everything fits: nothing is paged but what must come in once. Nothing fits: every access of every
// micro-batch is a miss, so that weights come in and go out twice a micro-batch.
TEST(Paging, BetweenNothingAndEverything) {
  Rng rng(9);
  const LayerProfile profile = synthetic_profile(rng, 8);
  ChainTables chain(profile);
  const Machine machine = load_machine("4x1080ti");
  const Pack all{0, 7};
  const PagingCost roomy =
      simulate_paging(chain, machine, HarmonyMode::Data, 2, 8, 1, int64_t{1} << 50);
  EXPECT_EQ(roomy.volume.weights, 2 * chain.state_bytes(all));
  const PagingCost tight = simulate_paging(chain, machine, HarmonyMode::Data, 2, 8, 1, 1);
  EXPECT_GT(tight.volume.weights, 2 * 12 * chain.state_bytes(all));
  EXPECT_GT(tight.seconds, roomy.seconds);
  const PagingCost pipeline = simulate_paging(chain, machine, HarmonyMode::Pipeline, 4, 8, 2, 1);
  EXPECT_GT(pipeline.volume.weights, 12 * chain.state_bytes(all));
}

// A cache of pages in the order of their last use, stated plainly: one device, all micro-batches
// forward, then all backward, updates as the last one passes.
class PlainCache {
 public:
  PlainCache(const LayerProfile& profile, int64_t limit) : profile_(profile), limit_(limit) {}

  SwapVolume run(int64_t parts) {
    const auto layers = static_cast<int64_t>(profile_.layers());
    for (int64_t i = 0; i < parts; ++i)
      for (int64_t l = 0; l < layers; ++l) touch({{'W', l, 0}, {'A', l, i}});
    for (int64_t i = 0; i < parts; ++i)
      for (int64_t l = layers - 1; l >= 0; --l) {
        touch({{'W', l, 0}, {'G', l, 0}, {'A', l, i}});
        order_.remove({'A', l, i});
        if (i + 1 == parts) touch({{'W', l, 0}, {'G', l, 0}, {'K', l, 0}});
      }
    return volume_;
  }

 private:
  using Page = std::tuple<char, int64_t, int64_t>;  // what, layer, micro-batch

  int64_t bytes(const Page& page) const {
    const auto [what, layer, part] = page;
    const auto l = static_cast<size_t>(layer);
    switch (what) {
      case 'W': return profile_.weights[l] + profile_.buffers[l];
      case 'G': return profile_.weights[l];
      case 'K': return profile_.optimizer[l];
      default:
        return profile_.backward.at(1).peak[l] - 2 * profile_.weights[l] - profile_.buffers[l];
    }
  }
  void count(const Page& page) {
    switch (std::get<0>(page)) {
      case 'W': volume_.weights += bytes(page); break;
      case 'G': volume_.gradients += bytes(page); break;
      case 'K': volume_.optimizer += bytes(page); break;
      default: volume_.activations += bytes(page);
    }
  }
  bool holds(const Page& page) const {
    return std::find(order_.begin(), order_.end(), page) != order_.end();
  }
  int64_t held() const {
    int64_t sum = 0;
    for (const Page& page : order_) sum += bytes(page);
    return sum;
  }
  void touch(const std::vector<Page>& wanted) {
    const auto is_wanted = [&](const Page& page) {
      return std::find(wanted.begin(), wanted.end(), page) != wanted.end();
    };
    std::vector<Page> missing;
    for (const Page& page : wanted) {
      if (!holds(page) && bytes(page) > 0) missing.push_back(page);
      if (holds(page)) order_.splice(order_.end(), order_, std::ranges::find(order_, page));
    }
    for (const Page& page : missing) {
      while (!order_.empty() && !is_wanted(order_.front()) && held() + bytes(page) > limit_) {
        count(order_.front());
        stored_[order_.front()] = true;
        order_.pop_front();
      }
      order_.push_back(page);
      const char what = std::get<0>(page);
      if (what == 'W' || what == 'K' || stored_[page]) count(page);
    }
    // What is used at once goes in this order.
    for (const Page& page : wanted)
      if (holds(page)) order_.splice(order_.end(), order_, std::ranges::find(order_, page));
  }

  const LayerProfile& profile_;
  int64_t limit_;
  std::list<Page> order_;  // least recently used first
  std::map<Page, bool> stored_;
  SwapVolume volume_;
};

TEST(Paging, IsAPlainCache) {
  Rng rng(31);
  const Machine machine = load_machine("4x1080ti");
  for (int round = 0; round < 40; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(2, 9));
    ChainTables chain(profile);
    const int64_t parts = rng.integer(1, 6), limit = rng.integer(1, 4'000) * 1'000'000;
    const PagingCost found =
        simulate_paging(chain, machine, HarmonyMode::Pipeline, 1, parts, 1, limit);
    EXPECT_EQ(found.volume, PlainCache(profile, limit).run(parts)) << round;
  }
}

// A stage whose weights and activations of one micro-batch do not fit misses at every access:
// weights come in and go out twice a micro-batch and once to be updated, except where the passes
// turn round. One that has room for them keeps its weights, however many micro-batches pass.
TEST(Paging, AStageThatDoesNotFitMissesAlways) {
  Rng rng(32);
  const LayerProfile profile = synthetic_profile(rng, 40);
  ChainTables chain(profile);
  const Machine machine = load_machine("4x1080ti");
  const int64_t parts = 16;
  const auto weights = static_cast<double>(chain.state_bytes({0, 39}));
  const PagingCost tight =
      simulate_paging(chain, machine, HarmonyMode::Pipeline, 4, parts, 1, 500'000'000);
  EXPECT_GT(static_cast<double>(tight.volume.weights), 0.9 * (4 * parts + 2) * weights);
  EXPECT_LE(static_cast<double>(tight.volume.weights), (4 * parts + 2) * weights);
  const PagingCost roomy =
      simulate_paging(chain, machine, HarmonyMode::Pipeline, 4, parts, 1, 9'000'000'000);
  EXPECT_LT(static_cast<double>(roomy.volume.weights), 2 * weights);
}

}  // namespace
}  // namespace windlass
