// Each rate is the best of several short rounds: interruptions only ever make a round slower. In a
// round all threads start together and the slowest counts.

#include "windlass/machine/host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// --- multiply-adds

// Enough independent sums to hide the latency of two units.
constexpr int kSums = 10;

template <typename Vector, size_t... k>
[[gnu::always_inline]] inline float multiply_add(int64_t rounds, float seed,
                                                 std::index_sequence<k...>) {
  Vector sums[] = {(Vector{} + (seed + static_cast<float>(k)))...};
  const Vector factor = Vector{} + 0.999F, term = Vector{} + seed;
  // Written out, so that every sum stays in a register.
  for (int64_t i = 0; i < rounds; ++i) ((sums[k] = sums[k] * factor + term), ...);
  Vector total = (sums[k] + ...);
  return total[0];
}

template <int lanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
};

struct Kernel {
  float (*run)(int64_t, float);
  int lanes;
};

float narrow(int64_t rounds, float seed) {
  return multiply_add<Lanes<4>::Vector>(rounds, seed, std::make_index_sequence<kSums>());
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float middle(int64_t rounds, float seed) {
  return multiply_add<Lanes<8>::Vector>(rounds, seed, std::make_index_sequence<kSums>());
}
[[gnu::target("avx512f")]] float wide(int64_t rounds, float seed) {
  return multiply_add<Lanes<16>::Vector>(rounds, seed, std::make_index_sequence<kSums>());
}

Kernel widest_kernel() {
  if (__builtin_cpu_supports("avx512f")) return {wide, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {middle, 8};
  return {narrow, 4};
}
#else
Kernel widest_kernel() { return {narrow, 4}; }
#endif

// --- running on several threads

// Seconds that `work(thread)` takes on the slowest of `count` threads that start together.
double time_together(size_t count, const std::function<void(size_t)>& work) {
  if (count == 1) {
    const auto start = Clock::now();
    work(0);
    return seconds_since(start);
  }
  std::vector<double> taken(count);
  std::atomic<size_t> waiting = count;
  const auto body = [&](size_t thread) {
    --waiting;
    while (waiting > 0) std::this_thread::yield();
    const auto start = Clock::now();
    work(thread);
    taken[thread] = seconds_since(start);
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < count; ++i) threads.emplace_back(body, i);
  body(0);
  threads.clear();
  return *std::max_element(taken.begin(), taken.end());
}

double shortest(int rounds, const std::function<double()>& round) {
  double best = HUGE_VAL;
  for (int i = 0; i < rounds; ++i) best = std::min(best, round());
  return std::max(best, 1e-9);
}

// Keeps the compiler from leaving out what nobody reads.
void keep(const void* pointer) { asm volatile("" : : "r"(pointer) : "memory"); }

// Rounds of a tenth of a millisecond: on a busy host most of them are not interrupted.
FlopsPerSecond measure_peak(size_t threads) {
  constexpr int64_t kRounds = 50'000;
  constexpr int kTries = 60;
  const Kernel kernel = widest_kernel();
  std::vector<float> results(threads);
  const double seconds = shortest(kTries, [&] {
    return time_together(threads, [&](size_t thread) {
      results[thread] = kernel.run(kRounds, 1.0F);
      keep(&results[thread]);
    });
  });
  return FlopsPerSecond(2.0 * kSums * kernel.lanes * static_cast<double>(kRounds) *
                        static_cast<double>(threads) / seconds);
}

// --- threads that wait for each other

// Of many turns of two threads that wake each other, the middle one.
Seconds measure_handoff() {
  constexpr int kTurns = 200;
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  std::vector<double> taken;
  const auto play = [&](int mine) {
    for (int i = 0; i < kTurns; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return turn % 2 == mine; });
      ++turn;
      lock.unlock();
      changed.notify_one();
    }
  };
  std::jthread other([&] { play(1); });
  for (int i = 0; i < kTurns; ++i) {
    const auto start = Clock::now();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return turn % 2 == 0; });
    taken.push_back(seconds_since(start));
    ++turn;
    lock.unlock();
    changed.notify_one();
  }
  const auto middle = taken.begin() + kTurns / 2;
  std::nth_element(taken.begin(), middle, taken.end());
  return Seconds(std::clamp(*middle / 2, 1e-6, 1e-3));  // there and back
}

// --- memory

// Three arrays, first touched by the threads that use them.
class Arrays {
 public:
  Arrays(size_t elements, size_t threads) : size_(elements) {
    for (auto& array : arrays_) array = std::make_unique_for_overwrite<float[]>(size_);
    time_together(threads, [&](size_t thread) {
      const auto [begin, end] = part(thread, threads);
      for (auto& array : arrays_) std::fill(array.get() + begin, array.get() + end, 1.0F);
    });
  }

  std::pair<size_t, size_t> part(size_t thread, size_t threads) const {
    return {size_ * thread / threads, size_ * (thread + 1) / threads};
  }

  BytesPerSecond triad(size_t threads) {
    const double seconds = shortest(3, [&] {
      return time_together(threads, [&](size_t thread) {
        const auto [begin, end] = part(thread, threads);
        float* a = arrays_[0].get();
        const float *b = arrays_[1].get(), *c = arrays_[2].get();
        for (size_t i = begin; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
        keep(a);
      });
    });
    return BytesPerSecond(3.0 * static_cast<double>(size_ * sizeof(float)) / seconds);
  }

  BytesPerSecond copy(size_t threads) {
    const double seconds = shortest(3, [&] {
      return time_together(threads, [&](size_t thread) {
        const auto [begin, end] = part(thread, threads);
        std::memcpy(arrays_[0].get() + begin, arrays_[1].get() + begin,
                    (end - begin) * sizeof(float));
        keep(arrays_[0].get());
      });
    });
    return BytesPerSecond(static_cast<double>(size_ * sizeof(float)) / seconds);
  }

 private:
  size_t size_;
  std::unique_ptr<float[]> arrays_[3];
};

// Bytes of one array. Three exceed the cache that cores share in nearly all processors; larger
// ones would take longer to touch for the first time than the rest of the measurement.
int64_t array_bytes(Bytes memory) {
  return std::max(kMiB.value, std::min(40 * kMiB.value, memory.value / 32));
}

// --- what there is

// Limits of the control group that a container runs in, or nothing.
std::ifstream control_group(const std::string& name) {
  return std::ifstream("/sys/fs/cgroup/" + name);
}

int64_t usable_cores() {
  int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  double quota = 0, period = 0;
  if (control_group("cpu.max") >> quota >> period && quota > 0 && period > 0)
    cores = std::min(cores, std::max(int64_t{1}, static_cast<int64_t>(quota / period)));
  return cores;
}

Bytes usable_memory() {
  int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  int64_t limit = 0;
  if (control_group("memory.max") >> limit && limit > 0) memory = std::min(memory, limit);
  return Bytes(std::max(memory, kMiB.value));
}

}  // namespace

HostFigures measure_host() {
  HostFigures host;
  host.cores = usable_cores();
  host.memory = usable_memory();
  const auto all = static_cast<size_t>(host.cores);
  host.peak_one = measure_peak(1);
  host.peak_all = all == 1 ? host.peak_one : measure_peak(all);
  Arrays arrays(static_cast<size_t>(array_bytes(host.memory)) / sizeof(float), all);
  host.triad_one = arrays.triad(1);
  host.triad_all = std::max(host.triad_one, all == 1 ? host.triad_one : arrays.triad(all));
  host.copy_one = arrays.copy(1);
  host.copy_all = std::max(host.copy_one, all == 1 ? host.copy_one : arrays.copy(all));
  host.handoff = measure_handoff();
  return host;
}

}  // namespace windlass
