// Random numbers of ops: a number is a function of (seed, stream, index of the element), so that it
// can be drawn again in any order by any thread. Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", 2011): the seed is its key, the stream the upper half of its
// counter.
//
// Here one number at a time; runtime/kernels/random.h draws the same ones in bulk. Word i of a
// stream is word i % 64 / 16 of the block with lower counter i / 64 * 16 + i % 16, so that runs of
// 16 neighbours can be computed side by side in vector registers and stored as they are.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace windlass {

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> x, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53u} * x[0], q = uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<uint32_t>(q >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(q),
         static_cast<uint32_t>(p >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(p)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return x;
}

constexpr uint32_t random_word(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t counter = index / 64 * 16 + index % 16;
  const auto low = [](uint64_t bits) { return static_cast<uint32_t>(bits); };
  const auto high = [](uint64_t bits) { return static_cast<uint32_t>(bits >> 32); };
  return philox({low(counter), high(counter), low(stream), high(stream)},
                {low(seed), high(seed)})[index % 64 / 16];
}

// True with the given probability.
constexpr bool random_chance(uint64_t seed, uint64_t stream, uint64_t index, double probability) {
  return static_cast<double>(random_word(seed, stream, index)) < probability * 0x1p32;
}

// Uniform in [0, 1) with 24 bits, which fp32 holds exactly.
constexpr double random_fraction(uint64_t seed, uint64_t stream, uint64_t index) {
  return static_cast<double>(random_word(seed, stream, index) >> 8) * 0x1p-24;
}

// Normal with mean 0 and deviation 1 from two words, by Box and Muller.
inline double normal_of_words(uint32_t first, uint32_t second) {
  const double u = (static_cast<double>(first) + 1) * 0x1p-32;  // in (0, 1]
  const double v = static_cast<double>(second) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

// Groups of 64 elements take 128 words: the first of each, then the second of each.
inline double philox_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t first = index / 64 * 128 + index % 64;
  return normal_of_words(random_word(seed, stream, first), random_word(seed, stream, first + 64));
}

}  // namespace windlass
