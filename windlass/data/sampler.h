// The order in which samples are taken.
#pragma once

#include <cstdint>

namespace windlass {

// A bijection of [0, size) for each key: where `index` goes. Needs no memory and the same time for
// any size. Requires 0 <= index < size.
int64_t permuted(int64_t index, int64_t size, uint64_t key);

// How far a run has come: all that must be stored for it to go on exactly where it was.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t index = 0;  // samples of this epoch already taken
  bool operator==(const SamplerPosition&) const = default;
};

// Goes through all samples of a data set again and again, each epoch in an order of its own, or in
// the order of the data. The order depends on seed, size and epoch only.
class Sampler {
 public:
  // Throws Error{Input} if there are no samples or the position is not one of this data set.
  Sampler(int64_t size, uint64_t seed, bool shuffle = true, SamplerPosition at = {});

  // The sample at a position; moves nothing.
  int64_t at(SamplerPosition position) const;
  // `position` moved on by `steps` >= 0 samples.
  SamplerPosition after(SamplerPosition position, int64_t steps) const;

  // The sample whose turn it is; the next call gives the one after it.
  int64_t next();
  SamplerPosition position() const { return position_; }
  // Moves on as `count` calls of next() would: what the other workers take.
  void skip(int64_t count) { position_ = after(position_, count); }

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  SamplerPosition position_;
};

}  // namespace windlass
