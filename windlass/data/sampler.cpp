// Shuffling by a Feistel network (Luby and Rackoff 1988) over the smallest even number of bits that
// holds the size. Results beyond the size are sent through again until one is not (cycle walking,
// Black and Rogaway 2002), which keeps it a bijection; the range is less than four times the size,
// so fewer than four rounds are expected.

#include "windlass/data/sampler.h"

#include <bit>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/rng.h"

namespace windlass {

int64_t permuted(int64_t index, int64_t size, uint64_t key) {
  ensure(index >= 0 && index < size, "an index outside the permutation");
  if (size == 1) return 0;
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1)));
  const int half = (bits + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (random_bits(key, round, right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

Sampler::Sampler(int64_t size, uint64_t seed, bool shuffle, SamplerPosition at)
    : size_(size), seed_(seed), shuffle_(shuffle), position_(at) {
  if (size < 1) fail_input("the data set has no samples");
  if (at.epoch < 0 || at.index < 0 || at.index >= size)
    fail_input(
        "cannot go on at sample {} of epoch {}: the data set has {} samples; was it another one?",
        at.index, at.epoch, size);
}

int64_t Sampler::at(SamplerPosition position) const {
  if (!shuffle_) return position.index;
  return permuted(position.index, size_,
                  random_bits(seed_, 0, static_cast<uint64_t>(position.epoch)));
}

SamplerPosition Sampler::after(SamplerPosition position, int64_t steps) const {
  ensure(steps >= 0, "a sampler goes forward only");
  position.epoch = checked_add(position.epoch, steps / size_);
  // Both are below the size: their sum could still be more than 63 bits hold.
  const int64_t rest = steps % size_;
  if (rest >= size_ - position.index) {
    position.epoch = checked_add(position.epoch, 1);
    position.index -= size_ - rest;
  } else {
    position.index += rest;
  }
  return position;
}

int64_t Sampler::next() {
  const int64_t sample = at(position_);
  position_ = after(position_, 1);
  return sample;
}

}  // namespace windlass
