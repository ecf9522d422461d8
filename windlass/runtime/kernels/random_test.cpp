#include "windlass/runtime/kernels/random.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "windlass/base/philox.h"

namespace windlass {
namespace {

using testing::ElementsAre;

// Known answers that come with Random123 (kat_vectors, philox4x32 10).
TEST(Random, PhiloxGivesItsKnownAnswers) {
  EXPECT_THAT(philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

// Element 1000 = 15 * 64 + 40: word 2, lane 8 of counter 15 * 16.
TEST(Random, WordsAreWhereTheHeaderSays) {
  const RandomKey key{0x0123456789abcdef, 0xfedcba9876543210};
  uint32_t word = 0;
  random_words(key, 1000, 1, &word);
  EXPECT_EQ(word, philox({15 * 16 + 8, 0, 0x76543210, 0xfedcba98}, {0x89abcdef, 0x01234567})[2]);
  // Beyond 2^32 blocks: 2^40 = 2^34 * 64, counter 2^38.
  random_words(key, int64_t{1} << 40, 1, &word);
  EXPECT_EQ(word, philox({0, 1 << 6, 0x76543210, 0xfedcba98}, {0x89abcdef, 0x01234567})[0]);
}

TEST(Random, BulkDrawsTheWordsOfOneAtATime) {
  const RandomKey key{0x0123456789abcdef, 0xfedcba9876543210};
  std::vector<uint32_t> words(1000);
  random_words(key, 0, 1000, words.data());
  at::Tensor normal = at::empty({1000}, at::kDouble), chance = at::empty({1000}, at::kFloat);
  at::Tensor uniform = at::empty({1000}, at::kFloat);
  fill_normal(key, 0, 1, normal);
  fill_uniform(key, 0, 1, uniform);
  fill_bernoulli(key, 0.3, chance);
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(words[i], random_word(key.seed, key.stream, i));
    EXPECT_EQ(normal[at].item<double>(), philox_normal(key.seed, key.stream, i));
    EXPECT_EQ(uniform[at].item<double>(), random_fraction(key.seed, key.stream, i));
    EXPECT_EQ(chance[at].item<double>(), random_chance(key.seed, key.stream, i, 0.3) ? 1 : 0);
  }
}

TEST(Random, AnyPartIsTheSame) {
  const RandomKey key{3, 4};
  std::vector<uint32_t> all(1000);
  random_words(key, 0, 1000, all.data());
  for (const int64_t first : {0, 1, 63, 64, 65, 500}) {
    for (const int64_t count : {0, 1, 63, 64, 129, 400}) {
      std::vector<uint32_t> part(static_cast<size_t>(count));
      random_words(key, first, count, part.data());
      EXPECT_EQ(part, std::vector<uint32_t>(all.begin() + first, all.begin() + first + count));
    }
  }
}

// A part of an inner axis draws what the whole does there.
TEST(Random, PartsOfAnAxisAreTheSame) {
  const int64_t outer = 3, size = 700, inner = 5;
  const auto fill = [](int which, const Region& region, at::Tensor& x) {
    const DrawnElements elements(region);
    if (which == 0) fill_normal({3, 4}, 1, 2, x, elements);
    if (which == 1) fill_uniform({3, 4}, -1, 1, x, elements);
    if (which == 2) fill_bernoulli({3, 4}, 0.3, x, elements);
  };
  for (int which = 0; which < 3; ++which) {
    at::Tensor all = at::empty({outer, size, inner}, at::kFloat);
    fill(which, {}, all);
    for (const auto& [begin, end] : {std::pair{0, 70}, {69, 70}, {100, 133}, {300, 700}}) {
      at::Tensor part = at::empty({outer, end - begin, inner}, at::kFloat);
      fill(which, {{outer, {0, outer}}, {size, {begin, end}}, {inner, {0, inner}}}, part);
      EXPECT_TRUE(part.equal(all.slice(1, begin, end)));
    }
  }
}

TEST(Random, ThreadsDoNotMatter) {
  const int threads = at::get_num_threads();
  const auto fill = [](int count) {
    at::set_num_threads(count);
    std::vector<at::Tensor> tensors(3);
    for (at::Tensor& tensor : tensors) tensor = at::empty({100'003}, at::kFloat);
    fill_uniform({1, 2}, -1, 1, tensors[0]);
    fill_normal({1, 2}, 0, 1, tensors[1]);
    fill_bernoulli({1, 2}, 0.3, tensors[2]);
    return tensors;
  };
  const auto one = fill(1), many = fill(4);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(many[i]));
}

// Of n numbers the mean deviates by less than 5 sigma / sqrt(n), the variance by about as much.
TEST(Random, Moments) {
  constexpr int64_t kCount = 1'000'000;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    at::Tensor x = at::empty({kCount}, type);
    fill_uniform({7, 1}, 2, 4, x);
    EXPECT_NEAR(x.mean().item<double>(), 3, 5e-3);
    EXPECT_NEAR(x.to(at::kDouble).var().item<double>(), 4.0 / 12, 5e-3);
    EXPECT_GE(x.min().item<double>(), 2);
    EXPECT_LT(x.max().item<double>(), 4);
    fill_normal({7, 2}, 1, 2, x);
    EXPECT_NEAR(x.mean().item<double>(), 1, 1e-2);
    EXPECT_NEAR(x.to(at::kDouble).var().item<double>(), 4, 4e-2);
    EXPECT_NEAR(((x - 1) / 2).pow(4).mean().item<double>(), 3, 0.05);
    fill_bernoulli({7, 3}, 0.1, x);
    EXPECT_NEAR(x.mean().item<double>(), 0.1, 2e-3);
  }
  at::Tensor x = at::empty({1000}, at::kBFloat16);
  fill_bernoulli({7, 4}, 1, x);
  EXPECT_EQ(x.to(at::kFloat).sum().item<double>(), 1000);
  fill_bernoulli({7, 4}, 0, x);
  EXPECT_EQ(x.to(at::kFloat).sum().item<double>(), 0);
}

TEST(Random, KeysAreIndependent) {
  at::Tensor a = at::empty({100'000}, at::kDouble), b = at::empty({100'000}, at::kDouble);
  fill_normal({1, 2}, 0, 1, a);
  for (const RandomKey other : {RandomKey{1, 3}, RandomKey{2, 2}, RandomKey{2, 1}}) {
    fill_normal(other, 0, 1, b);
    EXPECT_NEAR((a * b).mean().item<double>(), 0, 5 / std::sqrt(1e5));
  }
}

}  // namespace
}  // namespace windlass
