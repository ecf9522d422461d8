#include "windlass/runtime/threads.h"

#include <algorithm>
#include <ctime>
#include <dlfcn.h>
#include <mutex>

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#if AT_PARALLEL_OPENMP
#include <omp.h>
#endif

namespace windlass {
namespace {

// Parts are multiples of this, as the inner loops of a product are.
constexpr int64_t kPart = 32;
constexpr int64_t kSmall = int64_t{1} << 18;

struct Blas {
  void (*set)(int) = nullptr;
  int (*get)() = nullptr;

  Blas() {
    set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
    get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  }
  bool has_threads() const { return set != nullptr && get != nullptr; }
};

const Blas& blas() {
  static const Blas found;
  return found;
}

// BLAS uses one thread as long as one of these is there: devices multiply at the same time.
class OneBlasThread {
 public:
  OneBlasThread() {
    const std::lock_guard lock(mutex());
    if (count()++ > 0) return;
    before() = blas().get();
    if (before() != 1) blas().set(1);
  }
  ~OneBlasThread() {
    const std::lock_guard lock(mutex());
    if (--count() == 0 && before() != 1) blas().set(before());
  }
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static int& count() {
    static int here = 0;
    return here;
  }
  static int& before() {
    static int threads = 1;
    return threads;
  }
};

}  // namespace

Nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return Nanoseconds{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void use_threads(int threads) {
  // A thread that asks for the first time takes what any thread has set last: it must have asked
  // before it says what it wants itself. Of newer libtorch, the library and those that its loops
  // are compiled into each remember for themselves who has asked.
  at::get_num_threads();
  at::internal::lazy_init_num_threads();
#if AT_PARALLEL_OPENMP
  // libtorch's own way makes a second pool of threads anew, which nothing here uses and which spins
  // for some 40 ms.
  omp_set_num_threads(threads);
#else
  at::set_num_threads(threads);
#endif
}

void set_blas_threads(int threads) {
  if (blas().has_threads()) blas().set(std::max(1, threads));
}

void divide_product(int64_t size, int64_t work, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t threads = at::get_num_threads();
  if (threads <= 1 || size <= 1 || work < kSmall || at::in_parallel_region() ||
      !blas().has_threads())
    return f(0, size);
  const OneBlasThread one;
  int64_t each = (size + threads - 1) / threads;
  if (each >= kPart) each = (each + kPart - 1) / kPart * kPart;
  at::parallel_for(0, (size + each - 1) / each, 1, [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    f(first * each, std::min(size, last * each));
  });
}

}  // namespace windlass
