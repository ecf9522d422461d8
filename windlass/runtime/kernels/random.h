// The numbers of base/philox.h in bulk, in vector registers and on several threads.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {

// The words of elements first, ..., first + count - 1. Runs on the calling thread.
void random_words(RandomKey key, int64_t first, int64_t count, uint32_t* words);

// A word is below this with the given probability (below 1), as random_chance says.
uint32_t chance_threshold(double probability);

// `factor`, or 0 for a word below the threshold. A product, since compilers turn a choice between
// factors into a branch.
template <class T>
WINDLASS_INLINE inline T factor_if_kept(uint32_t word, uint32_t threshold, T factor) {
  return static_cast<T>(static_cast<int32_t>(word >= threshold)) * factor;
}

// Fill a contiguous floating-point tensor.
void fill_uniform(RandomKey key, double low, double high, at::Tensor& tensor);
void fill_normal(RandomKey key, double mean, double deviation, at::Tensor& tensor);
void fill_bernoulli(RandomKey key, double probability, at::Tensor& tensor);

}  // namespace windlass
