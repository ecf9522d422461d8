// Runs single kernels on operands made up for them, to see what they take on this host: what
// Runtime (run/runtime.h) promises of the functions of these names.
#pragma once

#include <cstdint>

#include "windlass/run/runtime.h"
#include "windlass/sim/simulate.h"

namespace windlass {

KernelPrice measure_op(const KernelRun& run, int threads, int devices = 1);
Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                           int devices = 1);
Nanoseconds measure_compression(const CompressionVariant& variant, int64_t elements, int threads,
                                int devices = 1);

}  // namespace windlass
