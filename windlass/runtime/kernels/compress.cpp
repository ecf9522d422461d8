#include "windlass/runtime/kernels/compress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/Parallel.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/random.h"
#include "windlass/runtime/kernels/vectorize.h"
#include "windlass/strategy/strategy.h"

namespace windlass {
namespace {

constexpr int64_t kGroup = 64;
constexpr int64_t kLargest = 2 * kGroup - 1;  // the last group
constexpr int64_t kGroupGrain = 64;           // groups worth a thread
constexpr int64_t kEndsBytes = 4;

int64_t group_count(int64_t elements) {
  return elements == 0 ? 0 : std::max<int64_t>(1, elements / kGroup);
}

struct Ends {
  float low, high;
};

uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Nearest bf16 number, as fp32, that is not above (below) a finite value.
float round_down(float value) {
  const uint32_t bits = bits_of(value);
  const bool away = value < 0 && (bits & 0xffff) != 0;
  return float_of((bits & 0xffff0000) + (away ? 0x10000u : 0));
}
float round_up(float value) { return -round_down(-value); }

Ends store_ends(Ends ends, uint8_t* to) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  bool fits = std::isfinite(ends.low) && std::isfinite(ends.high);
  if (fits) {
    ends = {round_down(ends.low), round_up(ends.high)};
    fits = std::isfinite(ends.high - ends.low);
  }
  if (!fits) ends = {kNan, kNan};
  const std::array<uint16_t, 2> words = {static_cast<uint16_t>(bits_of(ends.low) >> 16),
                                         static_cast<uint16_t>(bits_of(ends.high) >> 16)};
  std::memcpy(to, words.data(), kEndsBytes);
  return ends;
}

Ends load_ends(const uint8_t* from) {
  std::array<uint16_t, 2> words{};
  std::memcpy(words.data(), from, kEndsBytes);
  return {float_of(uint32_t{words[0]} << 16), float_of(uint32_t{words[1]} << 16)};
}

// Least and greatest; NaN if any element is not finite.
Ends find_ends(const float* x, int64_t n) {
  Ends ends{};
  Ends* result = &ends;
  vectorized([=]() WINDLASS_INLINE {
    float low = x[0], high = x[0], poison = 0;
#pragma omp simd reduction(min : low) reduction(max : high) reduction(+ : poison)
    for (int64_t i = 0; i < n; ++i) {
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
      poison += x[i] * 0.0f;  // NaN for what is not finite
    }
    *result = {low + poison, high + poison};
  });
  return ends;
}

void find_codes(const float* x, int64_t n, Ends ends, int levels, const uint32_t* words,
                uint8_t* codes) {
  const auto top = static_cast<float>(levels);
  const float spread = ends.high - ends.low;
  const float inverse = spread > 0 ? top / spread : 0;
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float chance = static_cast<float>(static_cast<int32_t>(words[i] >> 8)) * 0x1p-24f;
      const float place = x[i] >= ends.high ? top : (x[i] - ends.low) * inverse;
      codes[i] = static_cast<uint8_t>(static_cast<int32_t>(std::min(place + chance, top)));
    }
  });
}

void find_values(const uint8_t* codes, int64_t n, Ends ends, int levels, float* x) {
  const float step = (ends.high - ends.low) / static_cast<float>(levels);
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float value = ends.low + step * static_cast<float>(static_cast<int32_t>(codes[i]));
      x[i] = codes[i] == levels ? ends.high : value;
    }
  });
}

void pack(const uint8_t* codes, int64_t n, int bits, uint8_t* to) {
  const int64_t per_byte = 8 / bits;
  for (int64_t i = 0; i < n; i += per_byte) {
    unsigned byte = 0;
    for (int64_t k = 0; k < std::min(per_byte, n - i); ++k)
      byte |= static_cast<unsigned>(codes[i + k]) << (k * bits);
    *to++ = static_cast<uint8_t>(byte);
  }
}

void unpack(const uint8_t* from, int64_t n, int bits, uint8_t* codes) {
  const int64_t per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(
        (static_cast<unsigned>(from[i / per_byte]) >> (i % per_byte * bits)) & mask);
}

// Calls f(group, first, count) for every group, on several threads.
template <class F>
void for_each_group(int64_t elements, const F& f) {
  const int64_t groups = group_count(elements);
  at::parallel_for(0, groups, kGroupGrain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * kGroup;
      f(g, first, g + 1 == groups ? elements - first : kGroup);
    }
  });
}

void check(const at::Tensor& tensor, int bits, const at::Tensor& packed) {
  ensure(tensor.is_contiguous() && packed.is_contiguous() && packed.scalar_type() == at::kByte,
         "operands of compression are not contiguous, or not bytes");
  ensure(packed.numel() == packed_bytes(tensor.numel(), bits),
         "the memory for a compressed tensor has the wrong size");
}

}  // namespace

int64_t packed_bytes(int64_t elements, int bits) {
  ensure(bits == 8 || bits == 4 || bits == 2, "compression is to 8, 4 or 2 bits");
  return compressed_bytes(elements, bits);
}

void compress(const at::Tensor& tensor, int bits, RandomKey key, at::Tensor& packed) {
  check(tensor, bits, packed);
  const int64_t elements = tensor.numel();
  auto* ends_at = packed.data_ptr<uint8_t>();
  uint8_t* codes_at = ends_at + group_count(elements) * kEndsBytes;
  with_float_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* data = tensor.data_ptr<T>();
    for_each_group(elements, [=](int64_t group, int64_t first, int64_t n) {
      std::array<float, kLargest> room{};
      std::array<uint32_t, kLargest> words{};
      std::array<uint8_t, kLargest> codes{};
      for (int64_t i = 0; i < n; ++i)
        room[static_cast<size_t>(i)] = static_cast<float>(data[first + i]);
      const Ends ends = store_ends(find_ends(room.data(), n), ends_at + group * kEndsBytes);
      if (std::isfinite(ends.low)) {
        random_words(key, first, n, words.data());
        find_codes(room.data(), n, ends, (1 << bits) - 1, words.data(), codes.data());
      }
      pack(codes.data(), n, bits, codes_at + first * bits / 8);
    });
  });
}

void decompress(const at::Tensor& packed, int bits, at::Tensor& tensor) {
  check(tensor, bits, packed);
  const int64_t elements = tensor.numel();
  const auto* ends_at = packed.data_ptr<uint8_t>();
  const uint8_t* codes_at = ends_at + group_count(elements) * kEndsBytes;
  with_float_type(tensor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* data = tensor.data_ptr<T>();
    for_each_group(elements, [=](int64_t group, int64_t first, int64_t n) {
      std::array<float, kLargest> room{};
      std::array<uint8_t, kLargest> codes{};
      unpack(codes_at + first * bits / 8, n, bits, codes.data());
      find_values(codes.data(), n, load_ends(ends_at + group * kEndsBytes), (1 << bits) - 1,
                  room.data());
      for (int64_t i = 0; i < n; ++i)
        data[first + i] = static_cast<T>(room[static_cast<size_t>(i)]);
    });
  });
}

}  // namespace windlass
