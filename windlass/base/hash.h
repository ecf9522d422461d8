// A 64-bit hash that is the same on every machine and in every run.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace windlass {

// Order-dependent accumulator of values; equal sequences give equal results.
class Hasher {
 public:
  Hasher& add(uint64_t value) {
    state_ = mix(state_ ^ mix(value + 0x9e3779b97f4a7c15ULL));
    return *this;
  }
  Hasher& add(int64_t value) { return add(static_cast<uint64_t>(value)); }
  Hasher& add(int32_t value) { return add(static_cast<uint64_t>(static_cast<int64_t>(value))); }
  Hasher& add(bool value) { return add(static_cast<uint64_t>(value)); }
  Hasher& add(double value) { return add(std::bit_cast<uint64_t>(value)); }
  Hasher& add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
    return *this;
  }

  uint64_t result() const { return state_; }

 private:
  // Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with good avalanche.
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }

  uint64_t state_ = 0x243f6a8885a308d3ULL;
};

// Of many bytes: four chains side by side, so that it runs at the speed of memory.
inline uint64_t hash_bytes(std::span<const std::byte> bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ULL;
  uint64_t chains[4] = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32)
    for (size_t c = 0; c < 4; ++c) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at + 8 * c, 8);
      chains[c] = std::rotl((chains[c] ^ word) * kFactor, 29);
    }
  Hasher hasher;
  for (uint64_t chain : chains) hasher.add(chain);
  for (; at < bytes.size(); ++at) hasher.add(static_cast<uint64_t>(bytes[at]));
  return hasher.add(static_cast<uint64_t>(bytes.size())).result();
}

}  // namespace windlass
