// The numbers of base/philox.h in bulk, in vector registers and on several threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "windlass/graph/op_piece.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {

// Where the elements of a piece lie in the whole op, whose element e draws word e of the stream.
class DrawnElements {
 public:
  // PieceFacts::random, which must outlive this. Empty: the piece is the whole op.
  explicit DrawnElements(const Region& region);
  DrawnElements() = default;

  // Calls f(first, whole, count) for the runs of the elements [first, first + count) of the piece
  // that are neighbours in the whole op, where they begin with element `whole`.
  template <class F>
  void for_each_run(int64_t first, int64_t count, const F& f) const {
    const int64_t end = first + count;
    while (first < end) {
      const int64_t size = std::min(run_ - first % run_, end - first);
      f(first, region_ == nullptr ? first : whole_element(*region_, first), size);
      first += size;
    }
  }

 private:
  const Region* region_ = nullptr;
  int64_t run_ = INT64_MAX;
};

// The words of elements first, ..., first + count - 1 of the whole op, or of a piece. Runs on the
// calling thread.
void random_words(RandomKey key, int64_t first, int64_t count, uint32_t* words);
void random_words(RandomKey key, const DrawnElements& elements, int64_t first, int64_t count,
                  uint32_t* words);

// A word is below this with the given probability (below 1), as random_chance says.
uint32_t chance_threshold(double probability);

// `factor`, or 0 for a word below the threshold. A product, since compilers turn a choice between
// factors into a branch.
template <class T>
WINDLASS_INLINE inline T factor_if_kept(uint32_t word, uint32_t threshold, T factor) {
  return static_cast<T>(static_cast<int32_t>(word >= threshold)) * factor;
}

// Fill a contiguous floating-point tensor, which is a whole one or the given piece.
void fill_uniform(RandomKey key, double low, double high, at::Tensor& tensor,
                  const DrawnElements& elements = {});
void fill_normal(RandomKey key, double mean, double deviation, at::Tensor& tensor,
                 const DrawnElements& elements = {});
void fill_bernoulli(RandomKey key, double probability, at::Tensor& tensor,
                    const DrawnElements& elements = {});

}  // namespace windlass
