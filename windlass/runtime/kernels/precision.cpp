#include "windlass/runtime/kernels/precision.h"

#include <ATen/Context.h>

namespace windlass {

bool is_multiplied(at::ScalarType type) {
  if (!is_narrow(type)) return true;
  if (type != at::kBFloat16 || !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn())
    return false;
#if defined(__x86_64__)
  // What ATen asks for before it hands bf16 to oneDNN.
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace windlass
