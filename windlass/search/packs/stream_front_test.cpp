#include "windlass/search/packs/stream_front.h"

#include <gtest/gtest.h>

#include "windlass/base/rng.h"

namespace windlass {
namespace {

// Against all that was added.
TEST(StreamFront, KeepsTheBestOfAll) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    StreamFront front;
    std::vector<StreamCost> all;
    for (int64_t i = rng.integer(1, 40); i > 0; --i) {
      StreamCost cost;
      cost.fits = rng.chance(0.9);
      cost.seconds = static_cast<double>(rng.integer(1, 12));
      cost.volume.weights = rng.integer(1, 12);
      front.add({}, cost);
      if (cost.fits) all.push_back(cost);
    }
    for (int64_t most = 0; most <= 13; ++most) {
      double seconds = 1e9;
      int64_t swapped = 100;
      for (const StreamCost& cost : all) {
        if (cost.volume.swapped() <= most) seconds = std::min(seconds, cost.seconds);
        if (cost.seconds <= static_cast<double>(most))
          swapped = std::min(swapped, cost.volume.swapped());
      }
      const StreamFront::Entry* fastest = front.fastest(most);
      const StreamFront::Entry* least = front.least_swapped(static_cast<double>(most));
      ASSERT_EQ(fastest ? fastest->cost.seconds : 1e9, seconds) << round;
      ASSERT_EQ(least ? least->swapped : 100, swapped) << round;
    }
    for (size_t i = 1; i < front.entries().size(); ++i) {
      EXPECT_LT(front.entries()[i - 1].cost.seconds, front.entries()[i].cost.seconds);
      EXPECT_GT(front.entries()[i - 1].swapped, front.entries()[i].swapped);
    }
  }
}

}  // namespace
}  // namespace windlass
