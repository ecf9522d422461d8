// Random numbers that are the same everywhere: a value is a function of (seed, stream, counter), so
// any element can be drawn again later, in any order, on any device.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace windlass {

// Stateless draw: 64 well-mixed bits of (seed, stream, counter).
constexpr uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  const uint64_t key = mix(seed + 0x9e3779b97f4a7c15ULL) ^ mix(stream * 0xd1342543de82ef95ULL + 1);
  return mix(key + counter * 0x9e3779b97f4a7c15ULL);
}

// Uniform in [0, 1) with 53 bits.
constexpr double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<double>(random_bits(seed, stream, counter) >> 11) * 0x1.0p-53;
}

// Standard normal, by the method of Box and Muller (1958); each counter has a pair of draws of its
// own.
inline double random_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
  const double radius = std::sqrt(-2 * std::log(1 - random_uniform(seed, stream, 2 * counter)));
  const double angle = 2 * std::numbers::pi * random_uniform(seed, stream, 2 * counter + 1);
  return radius * std::cos(angle);
}

// A sequential generator over one stream.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint64_t bits() { return random_bits(seed_, stream_, counter_++); }
  double uniform() { return random_uniform(seed_, stream_, counter_++); }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // Uniform in [low, high], both ends included.
  int64_t integer(int64_t low, int64_t high) {
    const uint64_t span = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>(span == 0 ? bits() : bits() % span);
  }
  bool chance(double probability) { return uniform() < probability; }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t counter_ = 0;
};

}  // namespace windlass
