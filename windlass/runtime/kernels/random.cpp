#include "windlass/runtime/kernels/random.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/Parallel.h>

#include "windlass/base/philox.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

constexpr int64_t kLanes = 16;                    // blocks computed side by side
constexpr int64_t kGroupWords = 4 * kLanes;       // their words
constexpr int64_t kWordGrain = int64_t{1} << 14;  // words worth a thread
constexpr int kRounds = 10;

struct PhiloxBlock {
  uint32_t a, b, c, d;
};

struct RoundKeys {
  uint32_t first[kRounds];
  uint32_t second[kRounds];
};

RoundKeys round_keys(uint32_t k0, uint32_t k1) {
  RoundKeys keys{};
  for (int i = 0; i < kRounds; ++i) {
    keys.first[i] = k0;
    keys.second[i] = k1;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return keys;
}

WINDLASS_INLINE inline PhiloxBlock next_round(PhiloxBlock x, uint32_t k0, uint32_t k1) {
  const uint64_t p = uint64_t{0xD2511F53u} * x.a;
  const uint64_t q = uint64_t{0xCD9E8D57u} * x.c;
  return {static_cast<uint32_t>(q >> 32) ^ x.b ^ k0, static_cast<uint32_t>(q),
          static_cast<uint32_t>(p >> 32) ^ x.d ^ k1, static_cast<uint32_t>(p)};
}

// Written out so that the loop over lanes has no loop inside.
WINDLASS_INLINE inline PhiloxBlock all_rounds(PhiloxBlock x, const RoundKeys& k) {
  x = next_round(x, k.first[0], k.second[0]);
  x = next_round(x, k.first[1], k.second[1]);
  x = next_round(x, k.first[2], k.second[2]);
  x = next_round(x, k.first[3], k.second[3]);
  x = next_round(x, k.first[4], k.second[4]);
  x = next_round(x, k.first[5], k.second[5]);
  x = next_round(x, k.first[6], k.second[6]);
  x = next_round(x, k.first[7], k.second[7]);
  x = next_round(x, k.first[8], k.second[8]);
  return next_round(x, k.first[9], k.second[9]);
}

// Whole groups of 64 words.
void random_groups(RandomKey key, int64_t first_group, int64_t groups, uint32_t* words) {
  const RoundKeys keys =
      round_keys(static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
  const auto stream_low = static_cast<uint32_t>(key.stream);
  const auto stream_high = static_cast<uint32_t>(key.stream >> 32);
  vectorized([=]() WINDLASS_INLINE {
    for (int64_t g = 0; g < groups; ++g) {
      const auto counter = static_cast<uint64_t>(first_group + g) * kLanes;
      const auto low = static_cast<uint32_t>(counter);  // a multiple of 16: lanes do not carry
      const auto high = static_cast<uint32_t>(counter >> 32);
      uint32_t* out = words + g * kGroupWords;
#pragma omp simd
      for (uint32_t l = 0; l < kLanes; ++l) {
        const PhiloxBlock x = all_rounds({low + l, high, stream_low, stream_high}, keys);
        out[l] = x.a;
        out[kLanes + l] = x.b;
        out[2 * kLanes + l] = x.c;
        out[3 * kLanes + l] = x.d;
      }
    }
  });
}

// Calls f(first, count, words, at) for pieces of the elements of a tensor, on several threads. A
// group of elements takes `per_element` groups of words; the first element is number `at` of its
// group.
template <class F>
void for_each_piece(RandomKey key, const DrawnElements& elements, int64_t count,
                    int64_t per_element, const F& f) {
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  at::parallel_for(0, pieces, kWordGrain / kPiece, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, 2 * (kPiece + kGroupWords)> words{};
    const int64_t first = begin * kPiece;
    for (int64_t p = first; p < std::min(count, end * kPiece); p += kPiece)
      elements.for_each_run(
          p, std::min(kPiece, count - p), [&](int64_t from, int64_t whole, int64_t n) {
            const int64_t group = whole / kGroupWords, at = whole % kGroupWords;
            const int64_t groups = (at + n + kGroupWords - 1) / kGroupWords;
            random_groups(key, group * per_element, groups * per_element, words.data());
            f(from, n, words.data(), at);
          });
  });
}

}  // namespace

DrawnElements::DrawnElements(const Region& region) {
  int64_t run = 1;
  for (size_t axis = region.size(); axis-- > 0;) {
    if (!region[axis].whole()) {
      region_ = &region;
      run_ = std::max<int64_t>(1, run * region[axis].range.size());
      return;
    }
    run *= region[axis].size;
  }
}

void random_words(RandomKey key, int64_t first, int64_t count, uint32_t* words) {
  const int64_t end = first + count;
  while (first < end) {
    const int64_t offset = first % kGroupWords;
    if (offset == 0 && end - first >= kGroupWords) {
      const int64_t groups = (end - first) / kGroupWords;
      random_groups(key, first / kGroupWords, groups, words);
      first += groups * kGroupWords;
      words += groups * kGroupWords;
    } else {
      std::array<uint32_t, kGroupWords> group{};
      random_groups(key, first / kGroupWords, 1, group.data());
      const int64_t part = std::min(kGroupWords - offset, end - first);
      std::copy_n(group.begin() + offset, part, words);
      first += part;
      words += part;
    }
  }
}

void random_words(RandomKey key, const DrawnElements& elements, int64_t first, int64_t count,
                  uint32_t* words) {
  elements.for_each_run(first, count, [&](int64_t at, int64_t whole, int64_t size) {
    random_words(key, whole, size, words + (at - first));
  });
}

uint32_t chance_threshold(double probability) {
  return static_cast<uint32_t>(std::min(std::ceil(probability * 0x1p32), 0x1p32 - 1));
}

void fill_uniform(RandomKey key, double low, double high, at::Tensor& tensor,
                  const DrawnElements& elements) {
  with_float_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    T* data = tensor.data_ptr<T>();
    const auto base = static_cast<W>(low), span = static_cast<W>(high - low);
    for_each_piece(key, elements, tensor.numel(), 1,
                   [=](int64_t first, int64_t n, const uint32_t* words, int64_t at) {
                     // 24 bits, which fp32 holds exactly: never 1.
                     for (int64_t i = 0; i < n; ++i)
                       data[first + i] = static_cast<T>(
                           base + span * (static_cast<W>(words[at + i] >> 8) * W(0x1p-24)));
                   });
  });
}

void fill_normal(RandomKey key, double mean, double deviation, at::Tensor& tensor,
                 const DrawnElements& elements) {
  with_float_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* data = tensor.data_ptr<T>();
    for_each_piece(key, elements, tensor.numel(), 2,
                   [=](int64_t first, int64_t n, const uint32_t* words, int64_t at) {
                     for (int64_t i = 0; i < n; ++i) {
                       const uint32_t* pair = words + (at + i) / kGroupWords * 2 * kGroupWords +
                                              (at + i) % kGroupWords;
                       const double z = normal_of_words(pair[0], pair[kGroupWords]);
                       data[first + i] =
                           static_cast<T>(static_cast<wide_t<T>>(mean + deviation * z));
                     }
                   });
  });
}

void fill_bernoulli(RandomKey key, double probability, at::Tensor& tensor,
                    const DrawnElements& elements) {
  const uint32_t threshold = chance_threshold(probability);
  const bool always = probability >= 1;
  with_float_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* data = tensor.data_ptr<T>();
    for_each_piece(key, elements, tensor.numel(), 1,
                   [=](int64_t first, int64_t n, const uint32_t* words, int64_t at) {
                     for (int64_t i = 0; i < n; ++i)
                       data[first + i] =
                           static_cast<T>(always || words[at + i] < threshold ? 1.0f : 0.0f);
                   });
  });
}

}  // namespace windlass
