#include "windlass/runtime/kernels/compress.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "windlass/runtime/kernels/random.h"

namespace windlass {
namespace {

at::Tensor normal_row(int64_t count, at::ScalarType type = at::kFloat) {
  at::Tensor x = at::empty({count}, type);
  fill_normal({11, static_cast<uint64_t>(count)}, 0.5, 2, x);
  return x;
}

at::Tensor round_trip(const at::Tensor& x, int bits, RandomKey key = {1, 1}) {
  at::Tensor packed = at::empty({packed_bytes(x.numel(), bits)}, at::kByte);
  at::Tensor y = at::empty(x.sizes(), x.scalar_type());
  compress(x, bits, key, packed);
  decompress(packed, bits, y);
  return y;
}

// 1000 elements: 15 groups of 4 bytes, and 1000, 500 or 250 bytes of codes.
TEST(Compress, Size) {
  EXPECT_EQ(packed_bytes(1000, 8), 60 + 1000);
  EXPECT_EQ(packed_bytes(1000, 4), 60 + 500);
  EXPECT_EQ(packed_bytes(1000, 2), 60 + 250);
  EXPECT_EQ(packed_bytes(65, 2), 4 + 17);
  EXPECT_EQ(packed_bytes(3, 2), 4 + 1);
  EXPECT_EQ(packed_bytes(0, 8), 0);
}

TEST(Compress, StaysWithinAStep) {
  for (const int bits : {8, 4, 2}) {
    for (const int64_t count : {0, 1, 3, 63, 64, 65, 127, 128, 129, 10'001}) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        const at::Tensor x = normal_row(count, type), y = round_trip(x, bits);
        for (int64_t first = 0; first < count; first += 64) {
          // The last group takes what is left over.
          const bool last = count - first < 128;
          const int64_t n = last ? count - first : 64;
          const at::Tensor a = x.narrow(0, first, n).to(at::kDouble);
          const at::Tensor b = y.narrow(0, first, n).to(at::kDouble);
          const double low = a.min().item<double>(), high = a.max().item<double>();
          const double ends = (std::abs(low) + std::abs(high)) / 128;  // their rounding
          const double step = (high - low + ends) / ((1 << bits) - 1);
          const double rounding = (std::abs(low) + std::abs(high)) / 256;  // of 16-bit values
          EXPECT_LE((a - b).abs().max().item<double>(), step * 1.0001 + rounding);
          if (last) break;
        }
      }
    }
  }
}

// The average over many keys comes as near as the deviation of a rounding, at most half a step,
// allows: 5 * step / 2 / sqrt(keys).
TEST(Compress, Unbiased) {
  constexpr int kKeys = 2000;
  const at::Tensor x = normal_row(200);
  const double range = (x.max() - x.min()).item<double>() * 1.05;
  for (const int bits : {8, 4, 2}) {
    at::Tensor sum = at::zeros({200}, at::kDouble);
    for (uint64_t k = 0; k < kKeys; ++k) sum += round_trip(x, bits, {k, 5}).to(at::kDouble);
    const double step = range / ((1 << bits) - 1);
    EXPECT_LE((sum / kKeys - x).abs().max().item<double>(), 5 * step / 2 / std::sqrt(kKeys));
  }
}

TEST(Compress, EndsAndConstantsAreExact) {
  at::Tensor x = normal_row(640, at::kBFloat16);
  for (const int bits : {8, 4, 2}) {
    for (uint64_t k = 0; k < 20; ++k) {
      const at::Tensor a = x.view({10, 64}), b = round_trip(x, bits, {k, 0}).view({10, 64});
      EXPECT_TRUE(a.amin(1).equal(b.amin(1)));
      EXPECT_TRUE(a.amax(1).equal(b.amax(1)));
      EXPECT_TRUE(b.gather(1, a.argmin(1, true)).equal(a.gather(1, a.argmin(1, true))));
      EXPECT_TRUE(b.gather(1, a.argmax(1, true)).equal(a.gather(1, a.argmax(1, true))));
    }
    for (const double value : {0.0, -0.75, 3.0, 1e-38, 1e30}) {
      const at::Tensor c = at::full({100}, value, at::kFloat).to(at::kBFloat16).to(at::kFloat);
      EXPECT_TRUE(round_trip(c, bits).equal(c)) << value;
    }
    const at::Tensor zero = at::zeros({70}, at::kFloat);
    EXPECT_TRUE(round_trip(zero, bits).equal(zero));
    // 0.1 is not a bf16 number: one of its two neighbours 2^-11 apart.
    const at::Tensor tenth = at::full({64}, 0.1, at::kFloat);
    EXPECT_LE((round_trip(tenth, bits) - tenth).abs().max().item<double>(), 0x1p-11);
  }
}

TEST(Compress, WhatIsNotFiniteComesBackAsNan) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), 3.4e38}) {
    at::Tensor x = normal_row(256);
    x.narrow(0, 100, 1).fill_(bad);
    x.narrow(0, 101, 1).fill_(-3e38);
    const at::Tensor y = round_trip(x, 4).view({4, 64}).isnan().all(1);
    for (int64_t g = 0; g < 4; ++g) EXPECT_EQ(y[g].item<bool>(), g == 1) << bad;
  }
}

TEST(Compress, SameKeySameBits) {
  const at::Tensor x = normal_row(100'000);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = round_trip(x, 2);
  at::set_num_threads(4);
  const at::Tensor many = round_trip(x, 2), other = round_trip(x, 2, {1, 2});
  at::set_num_threads(threads);
  EXPECT_TRUE(one.equal(many));
  EXPECT_FALSE(one.equal(other));
}

}  // namespace
}  // namespace windlass
