#include "windlass/strategy/part_sizes.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/graph/builder.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

using Sizes = std::vector<int32_t>;

TEST(PartSizes, HandComputed) {
  const auto ends = [](int64_t size, const Sizes& sizes) {
    std::vector<int64_t> list;
    for (size_t i = 0; i < sizes.size(); ++i)
      list.push_back(
          part_of(size, static_cast<int64_t>(sizes.size()), sizes, static_cast<int64_t>(i)).end);
    return list;
  };
  EXPECT_EQ(ends(48, {2, 2, 1, 1}), (std::vector<int64_t>{16, 32, 40, 48}));
  // 7 x 2/4 = 3.5, 7 x 3/4 = 5.25.
  EXPECT_EQ(ends(7, {2, 1, 1}), (std::vector<int64_t>{3, 5, 7}));
  EXPECT_EQ(ends(3, {5, 1}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(smallest_part(3, 2, Sizes{1, 5}), 0);  // 3 / 6
  EXPECT_EQ(smallest_part(7, 4, {}), 1);
  EXPECT_EQ(reduced_sizes({4, 2, 2}), (Sizes{2, 1, 1}));
  EXPECT_EQ(reduced_sizes({3, 3}), Sizes{});
  EXPECT_EQ(format_parts(3, Sizes{2, 1, 1}), "2:1:1");
  EXPECT_EQ(format_parts(3, {}), "3");
}

// Parts follow each other, scale with the axis where nothing is rounded, and lie within one of what
// is exact.
TEST(PartSizes, Tile) {
  Rng rng(3);
  for (int round = 0; round < 2000; ++round) {
    const int64_t parts = rng.integer(1, 6);
    Sizes sizes;
    for (int64_t p = 0; p < parts; ++p)
      sizes.push_back(static_cast<int32_t>(rng.integer(1, rng.chance(0.2) ? 100'000 : 5)));
    const int64_t units = part_units(parts, sizes);
    const int64_t size = rng.chance(0.5) ? rng.integer(0, 100) : rng.integer(1, int64_t{1} << 40);
    int64_t next = 0;
    for (int64_t p = 0; p < parts; ++p) {
      const Range part = part_of(size, parts, sizes, p);
      EXPECT_EQ(part.begin, next);
      next = part.end;
      const double exact =
          static_cast<double>(size) / static_cast<double>(units) * sizes[static_cast<size_t>(p)];
      EXPECT_LE(std::abs(static_cast<double>(part.size()) - exact), 1 + 1e-9 * exact);
      const Range whole = part_of(units, parts, sizes, p);
      const Range twelve = part_of(12 * units, parts, sizes, p);
      EXPECT_EQ(twelve, (Range{12 * whole.begin, 12 * whole.end}));
    }
    EXPECT_EQ(next, size);
  }
}

TEST(PartSizes, WhatIsRefused) {
  EXPECT_EQ(check_sizes(2, {}), "");
  EXPECT_EQ(check_sizes(2, Sizes{2, 1}), "");
  for (const Sizes& sizes : {Sizes{2}, Sizes{2, 1, 1}, Sizes{0, 1}, Sizes{-1, 2}, Sizes{1, 1},
                             Sizes{4, 2}, Sizes{1 << 20, 1}, Sizes{INT32_MAX, INT32_MAX - 1}})
    EXPECT_NE(check_sizes(2, sizes), "");
  GraphBuilder b("one");
  const TensorId x = b.input("x", {DType::F32, {6, 8}});
  b.set_output(b.op(OpKind::Linear, LinearAttrs{}, {x, b.weight("w", {DType::F32, {8, 8}})}, "a"));
  const Graph graph = b.finish();
  const Op& op = graph.ops[0];
  const LoopNest nest = loops_of(graph, op);
  EXPECT_NO_THROW(check_sharding(op, nest, {{{0, 2, 1, {2, 1}}}}, 2));
  EXPECT_NO_THROW(check_sharding(op, nest, {{{0, 2, 1, {2, 1}}, {0, 2, 1, {2, 1}}}}, 4));
  EXPECT_THROW(check_sharding(op, nest, {{{0, 2, 1, {7, 1}}, {0, 2}}}, 4), Error);
  EXPECT_THROW(check_sharding(op, nest, {{{0, 2, 1, {1, 9}}}}, 2), Error);   // 0 and 6 rows
  EXPECT_THROW(check_sharding(op, nest, {{{-1, 2, 1, {2, 1}}}}, 2), Error);  // copies
  EXPECT_THROW(check_sharding(op, nest, {{{0, 2, 1, {2, 1, 1}}}}, 2), Error);
  EXPECT_THROW(check_sharding(op, nest, {{{0, 2, 1, {2, 2}}}}, 2), Error);
}

TEST(Replicas, SamplesBySpeed) {
  // 32 x 3/8 = 12 and 4.
  EXPECT_EQ(samples_by_speed(32, {3, 3, 1, 1}), (Sizes{12, 12, 4, 4}));
  EXPECT_EQ(samples_by_speed(4, {100, 1, 1, 1}), (Sizes{1, 1, 1, 1}));
  EXPECT_EQ(samples_by_speed(5, {100, 1, 1, 1}), (Sizes{2, 1, 1, 1}));
  Rng rng(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> speeds;
    for (int64_t r = rng.integer(1, 8); r > 0; --r) speeds.push_back(rng.uniform(0.01, 4));
    const auto count = static_cast<int64_t>(speeds.size());
    const int64_t samples = rng.integer(count, 200);
    const Sizes found = samples_by_speed(samples, speeds);
    int64_t sum = 0;
    for (int32_t size : found) sum += size;
    EXPECT_EQ(sum, samples);
    EXPECT_GE(*std::ranges::min_element(found), 1);
    for (size_t a = 0; a < found.size(); ++a)
      for (size_t c = 0; c < found.size(); ++c)
        if (speeds[a] > speeds[c]) {
          EXPECT_GE(found[a] + 1, found[c]);
        }
  }
}

}  // namespace
}  // namespace windlass
