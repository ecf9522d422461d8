#include "windlass/search/chain/chain.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/search/chain/chain_check.h"

namespace windlass {
namespace {

using Kind = ChainStep::Kind;
using Steps = std::vector<ChainStep>;

// Every schedule of a chain, without thought.
class Enumeration {
 public:
  Enumeration(const Chain& chain, ChainMode mode, size_t longest_pass = 9)
      : chain_(chain), mode_(mode), longest_pass_(longest_pass) {}

  std::vector<ChainCost> frontier() {
    std::vector<ChainCost> costs;
    for (const Steps& steps : outer(0))
      if (const auto cost = cost_of_schedule(chain_, steps)) costs.push_back(*cost);
    std::ranges::sort(costs, [](const ChainCost& a, const ChainCost& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.time < b.time;
    });
    std::vector<ChainCost> best;
    for (const ChainCost& cost : costs)
      if (best.empty() || cost.time < best.back().time) best.push_back(cost);
    return best;
  }

 private:
  static Steps joined(Steps a, const Steps& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::vector<Steps> outer(size_t i) const {
    std::vector<Steps> all;
    const auto count = chain_.blocks.size();
    const std::vector<bool> waits =
        chain_.most_units > 0 ? std::vector<bool>{false, true} : std::vector<bool>{false};
    for (size_t k = 0; k < chain_.blocks[i].options.size(); ++k) {
      const ChainStep keep = {Kind::Keep, static_cast<int32_t>(i), static_cast<int32_t>(k)};
      const ChainStep back = {Kind::Back, static_cast<int32_t>(i), static_cast<int32_t>(k)};
      if (i + 1 == count) {
        all.push_back({keep, back});
        continue;
      }
      for (const bool wait : waits)
        for (const Steps& rest : outer(i + 1)) {
          if (wait && chain_.blocks[i].options[k].sent == 0) continue;
          Steps steps = {keep};
          if (wait) steps.push_back({Kind::Wait, static_cast<int32_t>(i + 1)});
          steps = joined(std::move(steps), rest);
          steps.push_back(back);
          all.push_back(steps);
        }
    }
    for (size_t j = i + 1; j < count && j <= i + longest_pass_; ++j)
      for (const Kind kind : {Kind::Store, Kind::Send}) {
        if (kind == Kind::Send && chain_.most_units == 0) continue;
        for (const Steps& rest : outer(j))
          for (const Steps& again : inner(i, j - 1)) {
            Steps steps = passes(i, j);
            steps.push_back({kind, static_cast<int32_t>(j)});
            all.push_back(joined(joined(std::move(steps), rest), again));
          }
      }
    return all;
  }

  std::vector<Steps> inner(size_t i, size_t last) const {
    std::vector<Steps> all;
    for (size_t k = 0; k < chain_.blocks[i].options.size(); ++k) {
      if (!chain_.blocks[i].options[k].again) continue;
      const ChainStep keep = {Kind::Keep, static_cast<int32_t>(i), static_cast<int32_t>(k)};
      const ChainStep back = {Kind::Back, static_cast<int32_t>(i), static_cast<int32_t>(k)};
      if (i == last) {
        all.push_back({keep, back});
        continue;
      }
      for (const Steps& rest : inner(i + 1, last)) {
        Steps steps = joined({keep}, rest);
        steps.push_back(back);
        all.push_back(steps);
      }
    }
    if (mode_ == ChainMode::Single) return all;
    for (size_t j = i + 1; j <= last && j <= i + longest_pass_; ++j)
      for (const Steps& rest : inner(j, last))
        for (const Steps& again : inner(i, j - 1)) {
          Steps steps = passes(i, j);
          steps.push_back({Kind::Store, static_cast<int32_t>(j)});
          all.push_back(joined(joined(std::move(steps), rest), again));
        }
    return all;
  }

  static Steps passes(size_t i, size_t j) {
    Steps steps;
    for (; i < j; ++i) steps.push_back({Kind::Pass, static_cast<int32_t>(i)});
    return steps;
  }

  const Chain& chain_;
  ChainMode mode_;
  size_t longest_pass_;
};

Chain random_chain(Rng& rng, bool link) {
  Chain chain;
  const int64_t count = rng.integer(1, link ? 4 : 5);
  const int64_t classes = rng.integer(1, count);
  std::vector<ChainBlock> kinds(static_cast<size_t>(classes));
  // Small numbers, so that many points meet.
  const int64_t top = rng.chance(0.5) ? 6 : 1000;
  for (ChainBlock& block : kinds) {
    block.input = rng.integer(0, top);
    block.pass = rng.integer(1, top);
    block.pass_bytes = rng.integer(0, 2 * top);
    const int64_t options = rng.integer(1, link ? 2 : 3);
    for (int64_t k = 0; k < options; ++k) {
      ChainOption option;
      option.forward = rng.integer(1, top);
      option.backward = rng.integer(1, 2 * top);
      option.kept = rng.integer(0, 3 * top);
      option.forward_bytes = rng.integer(0, top);
      option.backward_bytes = rng.integer(0, 2 * top);
      option.again = k == 0 || rng.chance(0.7);
      option.first = k == 0 || rng.chance(0.8);
      if (link && k > 0 && rng.chance(0.7)) {
        option.sent = rng.integer(1, 2 * top);
        option.sends_output = rng.chance(0.5);
        option.first = true;
        option.again = false;
      }
      block.options.push_back(option);
    }
  }
  for (int64_t i = 0; i < count; ++i)
    chain.blocks.push_back(kinds[static_cast<size_t>(rng.integer(0, classes - 1))]);
  if (rng.chance(0.2)) chain.floor = rng.integer(0, 6 * top);
  if (link) {
    chain.link_unit = rng.integer(1, top);
    chain.unit_time = rng.integer(1, top);
    chain.most_units = static_cast<int32_t>(rng.integer(1, 6));
  }
  return chain;
}

void expect_points_are_true(const Chain& chain, const ChainSolver& solver) {
  for (size_t p = 0; p < solver.frontier().size(); ++p) {
    const auto cost = cost_of_schedule(chain, solver.schedule(p));
    ASSERT_TRUE(cost.has_value());
    EXPECT_EQ(cost->time, solver.frontier()[p].time);
    EXPECT_EQ(cost->bytes, solver.frontier()[p].bytes);
  }
}

TEST(Chain, EqualsEnumeration) {
  size_t points = 0;
  for (uint64_t seed = 0; seed < sampled(3000u); ++seed) {
    Rng rng(seed);
    const bool link = seed % 3 == 0;
    const Chain chain = random_chain(rng, link);
    for (const ChainMode mode : {ChainMode::Single, ChainMode::Nested}) {
      const ChainSolver solver(chain, {.mode = mode});
      EXPECT_TRUE(solver.exact());
      ASSERT_EQ(solver.frontier(), Enumeration(chain, mode).frontier()) << "seed " << seed;
      expect_points_are_true(chain, solver);
      points += solver.frontier().size();
    }
    const size_t longest = 1 + seed % 2;
    ASSERT_EQ(ChainSolver(chain, {.longest_pass = longest}).frontier(),
              Enumeration(chain, ChainMode::Single, longest).frontier())
        << "seed " << seed;
  }
  EXPECT_GT(points, sampled(10000u));
}

TEST(Chain, InFlightIsTrueAndNearlyAlwaysBest) {
  size_t equal = 0, all = 0;
  for (uint64_t seed = 0; seed < sampled(1000u); ++seed) {
    Rng rng(seed, 1);
    Chain chain = random_chain(rng, seed % 3 == 0);
    chain.in_flight = rng.integer(2, 5);
    const ChainSolver solver(chain);
    EXPECT_FALSE(solver.exact());
    expect_points_are_true(chain, solver);
    const auto best = Enumeration(chain, ChainMode::Single).frontier();
    for (const ChainCost& point : best) {
      ++all;
      const auto& found = solver.frontier();
      auto above = std::ranges::upper_bound(found, point.bytes, {}, &ChainCost::bytes);
      if (above == found.begin()) continue;
      EXPECT_GE(std::prev(above)->time, point.time);
      equal += std::prev(above)->time == point.time;
    }
  }
  EXPECT_GT(static_cast<double>(equal), 0.97 * static_cast<double>(all)) << equal << " of " << all;
}

TEST(Chain, ResolutionIsWithinItsWord) {
  for (uint64_t seed = 0; seed < sampled(500u); ++seed) {
    Rng rng(seed, 2);
    const Chain chain = random_chain(rng, seed % 3 == 0);
    const ChainSolver exact(chain, {.mode = ChainMode::Nested});
    const ChainSolver coarse(chain, {.mode = ChainMode::Nested, .resolution = rng.integer(1, 100)});
    EXPECT_FALSE(coarse.exact());
    expect_points_are_true(chain, coarse);
    for (const ChainCost& point : exact.frontier()) {
      const auto& found = coarse.frontier();
      auto above = std::ranges::upper_bound(found, point.bytes + coarse.error_bytes(), {},
                                            &ChainCost::bytes);
      ASSERT_NE(above, found.begin());
      EXPECT_LE(std::prev(above)->time, point.time);
    }
  }
}

// Four equal blocks of 10 bytes kept, inputs of 2, forward 1 and backward 2 ns. All kept: 40 bytes
// in 12 ns. Passing the first two and running them again: 2 + 10 + 10 while the last two are kept,
// 20 while the first two are, 2 ns more.
TEST(Chain, HandComputed) {
  Chain chain;
  ChainBlock block;
  block.input = 2;
  block.pass = 1;
  block.pass_bytes = 2;
  block.options = {{.forward = 1, .backward = 2, .kept = 10}};
  chain.blocks.assign(4, block);
  const auto found = ChainSolver(chain).frontier();
  ASSERT_EQ(found.back(), (ChainCost{12, 40}));
  EXPECT_NE(std::ranges::find(found, ChainCost{14, 22}), found.end());
  // One block at a time: three inputs are stored beside the last block.
  EXPECT_EQ(found.front(), (ChainCost{15, 16}));
  // One input and a block at a time, from the start again for each block.
  EXPECT_EQ(ChainSolver(chain, {.mode = ChainMode::Nested}).frontier().front().bytes, 12);
}

}  // namespace
}  // namespace windlass
