// Threads that kernels are divided over: libtorch's own, which are OpenMP's, and those of the BLAS
// library it calls.
#pragma once

#include <cstdint>
#include <functional>

#include "windlass/sim/simulate.h"

namespace windlass {

// Time that the calling thread has worked: what others take of its core does not count.
Nanoseconds thread_time();

// Kernels that the calling thread runs from here on are divided over so many.
void use_threads(int threads);

// OpenBLAS has threads of its own, as many as there are cores whatever libtorch was told, which
// wait by spinning, as OpenMP's do: the two kinds take cores from each other. From here on it uses
// so many, in the whole process. Other libraries share OpenMP's, and nothing happens.
void set_blas_threads(int threads);

// Calls f(begin, end) for parts of [0, size), on all threads that the caller's kernels may use, to
// work out a matrix product by parts: within f, BLAS uses one thread. `work` is the number of
// multiplications of the whole: a small product stays in one part, as does one that the BLAS
// library divides well itself.
void divide_product(int64_t size, int64_t work, const std::function<void(int64_t, int64_t)>& f);

}  // namespace windlass
