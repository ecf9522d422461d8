#include "windlass/runtime/measure_harness.h"

#include <exception>
#include <thread>
#include <unistd.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>

#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass::measuring {
namespace {

// Other kernels, as there are between two runs of the same one in a step: their code and what the
// core has learnt of its branches must be fetched again.
class OtherKernels {
 public:
  void run() {
    at::mm_out(product_, values_, values_);
    product_.tanh_();
    product_ = at::softmax(product_, -1);
    product_.mul_(values_).add_(1.5);
    at::sum_out(sums_, product_, {0});
    at::native_layer_norm(product_, {kSize}, {}, {}, 1e-5);
    at::gelu_(product_);
    at::copy(product_, values_.t());
  }

 private:
  static constexpr int64_t kSize = 48;
  at::Tensor values_ = operand({DType::F32, {kSize, kSize}}),
             product_ = operand({DType::F32, {kSize, kSize}}),
             sums_ = operand({DType::F32, {kSize}});
};

}  // namespace

int64_t last_cache() {
  static const int64_t bytes =
      std::clamp<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 16 << 20, 48 << 20);
  return bytes;
}

Nanoseconds time_of(int threads, const std::function<void()>& run) {
  const auto start = Clock::now();
  const Nanoseconds worked = thread_time();
  run();
  if (threads == 1) return thread_time() - worked;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

at::Tensor operand(const TensorType& type, int64_t integer) {
  if (!type.present()) return {};
  if (!is_float(type.dtype)) return at::full(type.shape, integer, scalar_type(type.dtype));
  constexpr int64_t kDrawn = int64_t{1} << 16;
  at::Tensor tensor = at::empty(type.shape, scalar_type(type.dtype));
  const at::Tensor flat = tensor.view({-1});
  const int64_t count = flat.numel();
  int64_t filled = std::min(count, kDrawn);
  flat.narrow(0, 0, filled).uniform_(0.25, 1);
  while (filled < count) {
    const int64_t more = std::min(filled, count - filled);
    flat.narrow(0, filled, more).copy_(flat.narrow(0, 0, more));
    filled += more;
  }
  return tensor;
}

void on_device_threads(int devices, int threads,
                       const std::function<void(Arena&, DeviceTurn&)>& work) {
  install_allocator();
  // Two for each core are enough to see what those that share it do to each other's caches.
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int count = std::clamp(devices, 1, 2 * cores);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  std::vector<std::thread> workers;
  Together together(count);
  for (std::exception_ptr& error : errors)
    workers.emplace_back([&] {
      try {
        DeviceTurn device(together);
        use_threads(threads);
        set_blas_threads(threads);
        Arena arena("profile", kNoLimit, kAllocationUnit);
        const ArenaScope scope(arena);
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        work(arena, device);
      } catch (...) {
        error = std::current_exception();
      }
    });
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

Nanoseconds shared(Nanoseconds time, int threads, int devices) {
  return static_cast<Nanoseconds>(static_cast<double>(time) * core_sharing(devices, threads));
}

Nanoseconds usual(int threads, int devices, size_t repeats, const std::function<void()>& run) {
  std::vector<Nanoseconds> times;
  OtherKernels others;
  ComputePacer pacer(core_sharing(devices, threads));
  const auto begin = Clock::now();
  while (times.size() < repeats && (times.empty() || Clock::now() - begin < kPatience)) {
    const auto ready = Clock::now();
    if (pacer.paces()) pacer.begin();
    others.run();
    times.push_back(time_of(threads, run));
    if (pacer.paces()) pacer.end(ready);
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return std::max<Nanoseconds>(1, *middle);
}

}  // namespace windlass::measuring
