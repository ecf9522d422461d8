#include "windlass/search/grid/stage_cut.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"

namespace windlass {
namespace {

size_t below(Rng& rng, int64_t end) { return static_cast<size_t>(rng.integer(0, end - 1)); }

StageProblem random_problem(Rng& rng) {
  StageProblem problem;
  const size_t pieces = 1 + below(rng, 7);
  problem.micro_batches = 1 + static_cast<int64_t>(below(rng, 6));
  for (size_t i = 0; i < pieces; ++i)
    problem.passed.push_back(static_cast<int64_t>(below(rng, 50)));
  int32_t groups = 0;
  const size_t kinds = 1 + below(rng, 3);
  for (size_t k = 0; k < kinds; ++k) {
    StageProblem::Kind& kind = problem.kinds.emplace_back();
    for (size_t g = 1 + below(rng, 2); g > 0; --g) kind.groups.push_back(groups++);
    if (below(rng, 3) > 0) kind.limit = static_cast<int64_t>(20 + below(rng, 200));
    for (size_t i = 0; i < pieces; ++i) {
      kind.time.push_back(static_cast<double>(below(rng, 40)));
      kind.standing.push_back(static_cast<int64_t>(below(rng, 30)));
      kind.kept.push_back(static_cast<int64_t>(below(rng, 10)));
      kind.beside.push_back(static_cast<int64_t>(below(rng, 10)));
    }
    if (below(rng, 2) > 0) continue;
    for (size_t i = 0; i < pieces; ++i) {
      auto& again = kind.again.emplace_back();
      for (int64_t left = kind.kept[i]; left > 0 && below(rng, 4) > 0;) {
        const int64_t bytes = 1 + static_cast<int64_t>(below(rng, left));
        again.push_back({bytes, static_cast<double>(below(rng, 9))});
        left -= bytes;
      }
    }
  }
  problem.passes.assign(static_cast<size_t>(groups), {});
  for (auto& row : problem.passes)
    for (int32_t g = 0; g < groups; ++g)
      row.push_back({static_cast<double>(below(rng, 3)), static_cast<double>(below(rng, 8)) / 8});
  return problem;
}

// Every cut and every order in which the groups of each kind keep theirs.
std::optional<double> least_by_trying(const StageProblem& problem) {
  std::vector<int32_t> groups(problem.groups());
  for (size_t g = 0; g < groups.size(); ++g) groups[g] = static_cast<int32_t>(g);
  std::optional<double> best;
  do {
    const bool in_order = std::ranges::all_of(problem.kinds, [&](const StageProblem::Kind& kind) {
      std::vector<int32_t> seen;
      for (int32_t g : groups)
        if (std::ranges::find(kind.groups, g) != kind.groups.end()) seen.push_back(g);
      return seen == kind.groups;
    });
    if (!in_order) continue;
    for (uint32_t borders = 0; borders < 1U << (problem.pieces() - 1); ++borders) {
      std::vector<size_t> ends;
      for (size_t i = 1; i < problem.pieces(); ++i)
        if ((borders >> (i - 1) & 1U) != 0) ends.push_back(i);
      ends.push_back(problem.pieces());
      if (ends.size() != groups.size()) continue;
      const auto cost = cost_of(problem, ends, groups);
      if (cost && (!best || *cost < *best)) best = cost;
    }
  } while (std::ranges::next_permutation(groups).found);
  return best;
}

TEST(StageCut, IsTheLeastOfAll) {
  Rng rng(7);
  int possible = 0, impossible = 0;
  for (int round = 0; round < 2000; ++round) {
    const StageProblem problem = random_problem(rng);
    const auto found = cut_stages(problem, 0);
    const auto least = least_by_trying(problem);
    ASSERT_EQ(found.has_value(), least.has_value()) << round;
    if (!found) {
      ++impossible;
      continue;
    }
    ++possible;
    EXPECT_DOUBLE_EQ(found->time, *least) << round;
    const auto again = cost_of(problem, found->ends, found->groups);
    ASSERT_TRUE(again);
    EXPECT_DOUBLE_EQ(*again, found->time);
  }
  EXPECT_GT(possible, 300);
  EXPECT_GT(impossible, 300);
}

TEST(StageCut, FastGroupsGetMore) {
  StageProblem problem;
  problem.micro_batches = 100;
  problem.passed.assign(12, 0);
  problem.passes.assign(2, std::vector<StageProblem::Pass>(2));
  for (int32_t g = 0; g < 2; ++g)
    problem.kinds.push_back({.groups = {g},
                             .time = std::vector<double>(12, g == 0 ? 3.0 : 1.0),
                             .standing = std::vector<int64_t>(12, 1),
                             .kept = std::vector<int64_t>(12, 0),
                             .beside = std::vector<int64_t>(12, 0)});
  auto found = cut_stages(problem);
  ASSERT_TRUE(found);
  const size_t first = found->ends[0];
  EXPECT_EQ(found->groups[0] == 0 ? first : 12 - first, 3U);
  // Room for six only on the fast one.
  problem.kinds[1].limit = 6;
  found = cut_stages(problem);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ends[0], 6U);
}

// What takes least time for its bytes is computed again first, and only as much as is lacking.
TEST(StageCut, ComputesAgainWhatDoesNotFit) {
  StageProblem problem;
  problem.micro_batches = 4;
  problem.passed.assign(2, 0);
  problem.passes.assign(2, std::vector<StageProblem::Pass>(2));
  problem.kinds.push_back({.groups = {0, 1},
                           .limit = 40,
                           .time = {10, 10},
                           .standing = {20, 20},
                           .kept = {20, 20},
                           .beside = {0, 0}});
  // The first stage holds two micro-batches.
  EXPECT_FALSE(cost_of(problem, {1, 2}, {0, 1}));
  problem.kinds[0].again.assign(2, {{.bytes = 8, .time = 8e-9}, {.bytes = 4, .time = 1e-9}});
  EXPECT_DOUBLE_EQ(cost_of(problem, {1, 2}, {0, 1}).value(), 20 + 3 * 10 + 4 * (1e-9 + 6e-9));
  problem.kinds[0].limit = 35;  // not the half of five bytes more
  EXPECT_FALSE(cost_of(problem, {1, 2}, {0, 1}));
}

// Stages that wait for what is on its way: two that take the longest side by side wait for each
// other, so a cut with shorter ones between them is faster, though its longest is no shorter.
TEST(StageCut, ShortStagesHideTheWays) {
  StageProblem problem;
  problem.micro_batches = 50;
  problem.passed.assign(8, 1);
  problem.passes.assign(3, std::vector<StageProblem::Pass>(3, {.start = 0, .per_byte = 1}));
  problem.kinds.push_back({.groups = {0, 1, 2},
                           .time = std::vector<double>(8, 10.0),
                           .standing = std::vector<int64_t>(8, 0),
                           .kept = std::vector<int64_t>(8, 0),
                           .beside = std::vector<int64_t>(8, 0)});
  // Once through all stages, then the mean of 30 and 30 with the way there and back between them.
  EXPECT_DOUBLE_EQ(cost_of(problem, {3, 6, 8}, {0, 1, 2}).value(), 84 + 49 * 31);
  EXPECT_DOUBLE_EQ(cost_of(problem, {3, 5, 8}, {0, 1, 2}).value(), 84 + 49 * 30);
  const auto found = cut_stages(problem);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ends, (std::vector<size_t>{3, 5, 8}));
}

TEST(StageCut, MorePiecesThanGroups) {
  StageProblem problem;
  problem.passed.assign(2, 0);
  problem.passes.assign(3, std::vector<StageProblem::Pass>(3));
  problem.kinds.push_back(
      {.groups = {0, 1, 2}, .time = {1, 1}, .standing = {0, 0}, .kept = {0, 0}, .beside = {0, 0}});
  EXPECT_FALSE(cut_stages(problem));
}

}  // namespace
}  // namespace windlass
