// Redistributions carried out element by element on small tensors: every member must end with
// exactly the elements that the target layout gives it, each the sum of all its parts.

#include "windlass/strategy/redistribute.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

// Of each member: elements (flat index) and the partial results that went into each.
using Holding = std::map<int64_t, std::set<int64_t>>;
using State = std::vector<Holding>;

std::vector<int64_t> elements_in(const Layout& layout, const Shape& shape, int64_t member) {
  const Box box = box_of(layout, shape, member);
  std::vector<int64_t> blocks(shape.size(), 1);
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Axis) blocks[static_cast<size_t>(digit.axis)] = digit.blocks;
  std::vector<int64_t> result;
  const int64_t count = element_count(shape);
  for (int64_t e = 0; e < count; ++e) {
    int64_t rest = e;
    bool inside = true;
    for (size_t a = shape.size(); a-- > 0;) {
      const int64_t at = rest % shape[a] % (shape[a] / blocks[a]);
      rest /= shape[a];
      inside = inside && at >= box[a].begin && at < box[a].end;
    }
    if (inside) result.push_back(e);
  }
  return result;
}

// The number of a member's partial result: its digits that are partial.
int64_t partial_index(const Layout& layout, int64_t member) {
  int64_t index = 0, place = 1, inner = 1;
  for (size_t i = layout.digits.size(); i-- > 0;) {
    const Digit& digit = layout.digits[i];
    if (digit.kind == Digit::Kind::Partial) {
      index += member / inner % digit.parts * place;
      place *= digit.parts;
    }
    inner *= digit.parts;
  }
  return index;
}

State start(const Layout& layout, const Shape& shape, int64_t members) {
  State state(static_cast<size_t>(members));
  for (int64_t m = 0; m < members; ++m)
    for (int64_t e : elements_in(layout, shape, m))
      state[static_cast<size_t>(m)][e] = {partial_index(layout, m)};
  return state;
}

int64_t partial_count(const Layout& layout) {
  int64_t count = 1;
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Partial) count *= digit.parts;
  return count;
}

// A collective: members of each group pool what they have and keep what the result gives them.
State carry_out(const Move& move, const State& before, const Shape& shape) {
  const auto members = static_cast<int64_t>(before.size());
  std::map<int64_t, Holding> pools;
  const auto group_of = [&](int64_t m) {
    int64_t rest = m;
    for (const MemberDigit& digit : move.digits)
      rest -= m / digit.place % digit.parts * digit.place;
    return rest;
  };
  for (int64_t m = 0; m < members; ++m)
    for (const auto& [e, parts] : before[static_cast<size_t>(m)])
      pools[group_of(m)][e].insert(parts.begin(), parts.end());
  State after(before.size());
  for (int64_t m = 0; m < members; ++m)
    for (int64_t e : elements_in(move.result, shape, m)) {
      const Holding& pool = pools[group_of(m)];
      const auto found = pool.find(e);
      if (found != pool.end()) after[static_cast<size_t>(m)][e] = found->second;
    }
  return after;
}

Layout random_layout(Rng& rng, const Shape& shape, const std::vector<int32_t>& parts,
                     bool may_be_partial, bool unequal) {
  Layout layout;
  std::set<int32_t> used;
  for (int32_t p : parts) {
    Digit digit{.parts = p};
    const int64_t kind = rng.integer(0, may_be_partial ? 2 : 1);
    if (kind == 1) {
      const auto axis =
          static_cast<int32_t>(rng.integer(0, static_cast<int64_t>(shape.size()) - 1));
      if (used.insert(axis).second) {
        digit.kind = Digit::Kind::Axis;
        digit.axis = axis;
        digit.loop_size = shape[static_cast<size_t>(axis)];
        digit.map = {.loop = 0};
        if (digit.loop_size % 2 == 0 && digit.loop_size / 2 >= p && rng.chance(0.2)) {
          digit.blocks = 2;
          digit.loop_size /= 2;
        }
        if (unequal) {
          for (int32_t i = 0; i < p; ++i)
            digit.sizes.push_back(static_cast<int32_t>(rng.integer(1, 3)));
          digit.sizes = reduced_sizes(digit.sizes);
        }
      }
    } else if (kind == 2) {
      digit.kind = Digit::Kind::Partial;
    }
    layout.digits.push_back(digit);
  }
  return layout;
}

TEST(Redistribute, RandomLayoutsEndWhereTheyShould) {
  Rng rng(7);
  const std::vector<std::vector<int32_t>> radices = {{4},    {2, 2},    {2, 3}, {6},
                                                     {3, 2}, {2, 2, 2}, {8},    {4, 2}};
  int collectives = 0, copies = 0;
  const int rounds = sampled(1200);
  for (int round = 0; round < rounds; ++round) {
    const bool unequal = round >= rounds / 2;
    const Shape shape = {rng.integer(1, 2) * 8, 12, rng.integer(2, 8)};
    const auto pick = [&] {
      return radices[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(radices.size()) - 1))];
    };
    const std::vector<int32_t> a = pick();
    std::vector<int32_t> b = pick();
    int64_t members = 1, other = 1;
    for (int32_t p : a) members *= p;
    for (int32_t p : b) other *= p;
    if (members != other) b = a;
    const Layout from = random_layout(rng, shape, a, true, unequal && rng.chance(0.7));
    const Layout to = random_layout(rng, shape, b, false, unequal && rng.chance(0.7));
    SCOPED_TRACE(format_layout(from) + " to " + format_layout(to));
    const Redistribution plan = redistribute(shape, from, to, members);
    State state = start(from, shape, members);
    Layout now = from;
    for (const Move& move : plan.moves) {
      if (!move.pairwise) {
        ++collectives;
        state = carry_out(move, state, shape);
        now = move.result;
        ASSERT_EQ(move.result_elements, largest_elements(move.result, shape));
        continue;
      }
      ++copies;
      // What is copied to a member, and what it has, is what it wants: by count.
      ASSERT_FALSE(now.partial());
      for (int64_t m = 0; m < members; ++m) {
        int64_t arrives = 0;
        for (const MemberCopy& copy : move.copies) arrives += copy.to == m ? copy.elements : 0;
        const auto wanted = elements_in(move.result, shape, m);
        int64_t had = 0;
        for (int64_t e : wanted) had += state[static_cast<size_t>(m)].contains(e) ? 1 : 0;
        ASSERT_EQ(had + arrives, static_cast<int64_t>(wanted.size())) << "member " << m;
      }
      state = start(move.result, shape, members);
      for (Holding& holding : state)
        for (auto& [e, parts] : holding)
          for (int64_t p = 0; p < partial_count(from); ++p) parts.insert(p);
      now = move.result;
    }
    for (int64_t m = 0; m < members; ++m)
      for (int64_t e : elements_in(to, shape, m)) {
        const Holding& holding = state[static_cast<size_t>(m)];
        ASSERT_TRUE(holding.contains(e)) << "member " << m << " lacks element " << e;
        ASSERT_EQ(static_cast<int64_t>(holding.at(e).size()), partial_count(from))
            << "member " << m;
      }
  }
  EXPECT_GT(collectives, rounds / 6);
  EXPECT_GT(copies, rounds / 60);
}

Digit axis(int32_t a, int32_t parts, int64_t size) {
  return {
      .kind = Digit::Kind::Axis, .parts = parts, .axis = a, .loop_size = size, .map = {.loop = 0}};
}
Digit partial(int32_t parts) { return {.kind = Digit::Kind::Partial, .parts = parts}; }
Digit copies(int32_t parts) { return {.parts = parts}; }

TEST(Redistribute, KnownCollectives) {
  const Shape shape = {16, 32};
  const auto name = [&](const Layout& from, const Layout& to) {
    return format_redistribution(redistribute(shape, from, to, 8));
  };
  EXPECT_EQ(name({{partial(8)}}, {{copies(8)}}), "all-reduce 8");
  EXPECT_EQ(name({{partial(8)}}, {{axis(0, 8, 16)}}), "reduce-scatter 8");
  EXPECT_EQ(name({{axis(0, 8, 16)}}, {{copies(8)}}), "all-gather 8");
  EXPECT_EQ(name({{axis(0, 8, 16)}}, {{axis(1, 8, 32)}}), "all-to-all 8");
  EXPECT_EQ(name({{copies(8)}}, {{axis(1, 8, 32)}}), "none");  // everybody cuts its copy
  // Megatron in 4 replicas: the batch stays split, the partial sums of pairs are combined.
  EXPECT_EQ(name({{axis(0, 4, 16), partial(2)}}, {{axis(0, 4, 16), copies(2)}}), "all-reduce 2");
  // From data parallel to a split by columns over all: one digit against two.
  EXPECT_EQ(name({{axis(0, 4, 16), copies(2)}}, {{copies(4), axis(1, 2, 32)}}), "all-gather 4");
}

// Two thirds and one third: what is gathered counts as two parts of two thirds; to other borders of
// the same axis goes what lies between the borders.
TEST(Redistribute, UnequalParts) {
  const Shape shape = {12, 4};
  Digit unequal = axis(0, 2, 12);
  unequal.sizes = {2, 1};
  EXPECT_EQ(box_of({{unequal}}, shape, 0)[0], (Range{0, 8}));
  EXPECT_EQ(box_of({{unequal}}, shape, 1)[0], (Range{8, 12}));
  const Redistribution gather = redistribute(shape, {{unequal}}, {{copies(2)}}, 2);
  ASSERT_EQ(format_redistribution(gather), "all-gather 2");
  EXPECT_EQ(gather.moves[0].elements, 2 * 8 * 4);
  const Redistribution scatter = redistribute(shape, {{partial(2)}}, {{unequal}}, 2);
  ASSERT_EQ(format_redistribution(scatter), "reduce-scatter 2");
  EXPECT_EQ(scatter.moves[0].elements, 2 * 8 * 4);
  EXPECT_EQ(scatter.moves[0].result_elements, 8 * 4);
  const Redistribution shift = redistribute(shape, {{unequal}}, {{axis(0, 2, 12)}}, 2);
  ASSERT_EQ(shift.moves.size(), 1u);
  ASSERT_EQ(shift.moves[0].copies.size(), 1u);
  EXPECT_EQ(shift.moves[0].copies[0].from, 0);
  EXPECT_EQ(shift.moves[0].copies[0].elements, 2 * 4);  // rows 6 and 7
}

// Blocks that are gathered while the same axis is cut otherwise: never both at a time.
TEST(Redistribute, BlocksAreGatheredBeforeTheirAxisIsCut) {
  const Shape shape = {2, 8};
  Digit blocks = axis(1, 2, 4);
  blocks.blocks = 2;
  const Redistribution plan =
      redistribute(shape, {{blocks, copies(2)}}, {{copies(2), axis(1, 2, 8)}}, 4);
  for (const Move& move : plan.moves)
    EXPECT_LE(std::ranges::count(move.result.digits, Digit::Kind::Axis, &Digit::kind), 1);
}

TEST(Redistribute, HaloComesFromTheNeighbours) {
  // Rows 0..15 over 4 members; a 3x3 convolution wants one row more on each inner side:
  // members 0 and 3 fetch one row, 1 and 2 fetch two: 6 copies of 32 elements.
  Digit halo = axis(0, 4, 16);
  halo.map = {.loop = 0, .stride = 1, .offset = -1, .window = 3};
  const Redistribution plan = redistribute({16, 32}, {{axis(0, 4, 16)}}, {{halo}}, 4);
  ASSERT_EQ(plan.moves.size(), 1u);
  EXPECT_TRUE(plan.moves[0].pairwise);
  EXPECT_EQ(plan.moves[0].copies.size(), 6u);
  for (const MemberCopy& copy : plan.moves[0].copies) EXPECT_EQ(copy.elements, 32);
  EXPECT_EQ(plan.moves[0].result_elements, 6 * 32);
}

TEST(Redistribute, SendsGoToTheSameNumber) {
  // Both stages hold copies: each member gets the whole tensor from its counterpart.
  const Redistribution plan = send({4, 8}, {{copies(2)}}, 2, {{copies(2)}}, 2);
  ASSERT_EQ(plan.moves.size(), 1u);
  ASSERT_EQ(plan.moves[0].copies.size(), 2u);
  EXPECT_EQ(plan.moves[0].copies[1].from, 1);
  EXPECT_EQ(plan.moves[0].copies[1].to, 1);
  EXPECT_EQ(plan.moves[0].copies[1].elements, 32);
}

// Shares go by the order of the peers, in whatever order digits are named.
TEST(MemberDigits, SharesFollowPeers) {
  const std::vector<std::vector<MemberDigit>> sets = {
      {}, {{1, 4}}, {{4, 3}}, {{1, 2}, {4, 3}}, {{4, 3}, {1, 2}}, {{12, 2}, {2, 2}, {1, 1}}};
  for (const auto& digits : sets)
    for (int64_t member = 0; member < 24; ++member) {
      const std::vector<int64_t> peers = peers_of(digits, member);
      EXPECT_TRUE(std::ranges::is_sorted(peers));
      const auto index = std::ranges::find(peers, member) - peers.begin();
      EXPECT_EQ(share_of(100, digits, member),
                part_of(100, static_cast<int64_t>(peers.size()), index));
    }
}

}  // namespace
}  // namespace windlass
