// Loops compiled for the widest vectors of the processor at hand.
//
// The build targets the oldest x86-64, and libtorch's own kernels choose their instructions at run
// time; so do these. A loop is written once, as a lambda marked WINDLASS_INLINE that is inlined
// into one function per instruction set:
//
//   vectorized([=]() WINDLASS_INLINE {
//   #pragma omp simd
//     for (int64_t i = 0; i < n; ++i) y[i] = a * x[i];
//   });
//
// Functions called in the body must be WINDLASS_INLINE too. A sum over a simd loop depends on the
// vector width, hence on the processor, but never on the number of threads.
#pragma once

#define WINDLASS_INLINE __attribute__((always_inline))

namespace windlass {

#if defined(__x86_64__)
template <class Body>
__attribute__((noinline, target("avx512f,avx512dq,avx512bw,avx512vl,fma"))) void run_avx512(
    const Body& body) {
  body();
}

template <class Body>
__attribute__((noinline, target("avx2,fma"))) void run_avx2(const Body& body) {
  body();
}

inline int vector_level() {
  static const int level =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
          ? 2
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1
                                                                        : 0;
  return level;
}

template <class Body>
void vectorized(const Body& body) {
  switch (vector_level()) {
    case 2: return run_avx512(body);
    case 1: return run_avx2(body);
    default: return body();
  }
}
#else
template <class Body>
void vectorized(const Body& body) {
  body();
}
#endif

}  // namespace windlass
