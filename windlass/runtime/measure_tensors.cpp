// What is timed by size alone: updates of weights, and compression of saved tensors.

#include <algorithm>
#include <vector>

#include <ATen/ops/full.h>

#include "windlass/runtime/kernels/compress.h"
#include "windlass/runtime/kernels/update_kernels.h"
#include "windlass/runtime/measure.h"
#include "windlass/runtime/measure_harness.h"

namespace windlass {
namespace {

// So many tensors of one size, one after the other, that they come to so many times what the last
// cache holds; but not more tiny ones than it takes to time them.
int64_t tensors_for(double caches, int64_t elements, int64_t bytes_each) {
  constexpr int64_t kMostTensors = 4096;
  const auto bytes = static_cast<int64_t>(caches * static_cast<double>(measuring::last_cache()));
  return std::clamp<int64_t>(bytes / bytes_each / elements, 1, kMostTensors);
}

// What a step updates was last used in the step before. Twice the cache is too little, since caches
// keep some of what passes through them again and again.
constexpr double kCachesOfUpdates = 8;
// What is compressed has just been made.
constexpr double kCachesOfCompression = 0.5;

// Weight and gradient, master copy, state.
int64_t bytes_of_updates(const UpdateVariant& variant) {
  const int64_t full = element_bytes(DType::F32);
  return element_bytes(variant.weight) + element_bytes(variant.gradient) +
         (variant.master ? full : 0) + full * optimizer_state_count(variant.optimizer);
}

}  // namespace

Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                           int devices) {
  const int64_t weights = tensors_for(kCachesOfUpdates, elements, bytes_of_updates(variant));
  return measuring::slowest(threads, devices, weights, [&] {
    const auto pool = [&](DType dtype) {
      return measuring::operand({dtype, {weights * elements}});
    };
    std::vector<at::Tensor> states;
    for (int i = 0; i < optimizer_state_count(variant.optimizer); ++i)
      states.push_back(pool(DType::F32));
    return [&variant, weights, elements, states, weight = pool(variant.weight),
            gradient = pool(variant.gradient),
            master = variant.master ? pool(DType::F32) : at::Tensor()] {
      for (int64_t i = 0; i < weights; ++i) {
        const auto piece = [&](const at::Tensor& all) {
          return all.narrow(0, i * elements, elements);
        };
        at::Tensor own = piece(weight), copy = variant.master ? piece(master) : at::Tensor();
        std::vector<at::Tensor> own_states;
        for (const at::Tensor& state : states) own_states.push_back(piece(state));
        update_weight(variant.optimizer, {}, 1, 1, own, piece(gradient),
                      variant.master ? &copy : nullptr, own_states);
      }
    };
  });
}

Nanoseconds measure_compression(const CompressionVariant& variant, int64_t elements, int threads,
                                int devices) {
  const int64_t tensors = tensors_for(kCachesOfCompression, elements, element_bytes(variant.dtype));
  const int64_t small = packed_bytes(elements, variant.bits);
  return measuring::slowest(threads, devices, tensors, [&] {
    return [&variant, tensors, elements, small,
            values = measuring::operand({variant.dtype, {tensors * elements}}),
            packed = at::full({tensors * small}, 0, at::kByte)] {
      for (int64_t i = 0; i < tensors; ++i) {
        at::Tensor from = values.narrow(0, i * elements, elements);
        at::Tensor to = packed.narrow(0, i * small, small);
        if (variant.back)
          decompress(to, variant.bits, from);
        else
          compress(from, variant.bits, {}, to);
      }
    };
  });
}

}  // namespace windlass
