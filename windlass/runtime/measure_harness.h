// How kernels are timed: on a thread of each of several devices at once, between other kernels, by
// the median of a few runs. Of measure.cpp and measure_tensors.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/graph/graph.h"
#include "windlass/runtime/memory/arena.h"
#include "windlass/sim/simulate.h"

namespace windlass::measuring {

using Clock = std::chrono::steady_clock;

// A kernel is repeated until it has been run so often, or for so long.
constexpr int kRepeats = 7;
constexpr auto kPatience = std::chrono::milliseconds(60);

// Wall time, or with one thread the thread's own.
Nanoseconds time_of(int threads, const std::function<void()>& run);

// Indices are 0, which exists in every table, or `integer`; other values are positive and of
// moderate size. Few are drawn and then repeated: drawing all would take longer than most kernels.
at::Tensor operand(const TensorType& type, int64_t integer = 0);

// Bytes that the cache next to memory holds, as far as the system tells; of one that many cores
// share, a moderate part.
int64_t last_cache();

// Devices that run the same at the same time, each on a thread of its own.
struct Together {
  explicit Together(int devices) : ready(devices), busy(devices) {}
  std::latch ready;
  std::atomic<int> busy;
};

// One device of them. One that fails keeps nobody waiting.
class DeviceTurn {
 public:
  explicit DeviceTurn(Together& all) : all_(all) {}
  ~DeviceTurn() {
    if (!started_) all_.ready.count_down();
    end();
  }
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

  // Waits until all are ready.
  void start() {
    started_ = true;
    all_.ready.arrive_and_wait();
  }
  // This one has measured. It goes on as long as others measure, so that they share what they share
  // in a step.
  template <class Run>
  void end_with(const Run& run) {
    end();
    while (all_.busy > 0) run();
  }

 private:
  void end() {
    if (!ended_) --all_.busy;
    ended_ = true;
  }

  Together& all_;
  bool started_ = false, ended_ = false;
};

// Runs `work` on a thread of each of so many devices, and throws what one of them threw.
void on_device_threads(int devices, int threads,
                       const std::function<void(Arena&, DeviceTurn&)>& work);

// What it takes where devices share cores: measured is the time that a thread worked.
Nanoseconds shared(Nanoseconds time, int threads, int devices);

// The median of a few runs: some find their operands nearer than others. Other kernels run between
// them, as they do in a step, and devices that share cores take turns.
Nanoseconds usual(int threads, int devices, size_t repeats, const std::function<void()>& run);

// The slowest device's time for each of `count` runs in a row, `make` having made what they work
// on: make() returns a function that does all of them.
template <class Make>
Nanoseconds slowest(int threads, int devices, int64_t count, const Make& make) {
  std::atomic<Nanoseconds> time = 1;
  on_device_threads(devices, threads, [&](Arena&, DeviceTurn& device) {
    const auto run = make();
    run();
    device.start();
    const Nanoseconds own =
        std::max<Nanoseconds>(1, usual(threads, devices, kRepeats, run) / count);
    device.end_with(run);
    Nanoseconds most = time;
    while (most < own && !time.compare_exchange_weak(most, own)) {
    }
  });
  return shared(time, threads, devices);
}

}  // namespace windlass::measuring
