// A device, as the executor knows it: memory inside of a limit, lanes whose threads work there, and
// how bytes come to it and leave it. The CPU is one; one that counts, waits and fails is made for
// tests (fake_device.h); an accelerator would be another, and the executor would not know.
//
// Hosts are devices too: they hold tensors and have no kernels of their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <ATen/core/Tensor.h>

#include "windlass/runtime/memory/arena.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// What a thread of a lane has to work with, as long as it works. Made, used and destroyed by that
// thread.
class LaneWork {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~LaneWork() = default;
  // Runs a job that could have started at `ready`; returns when all that it has begun is done, and
  // when that was by the clock of the device: earlier than now if the thread was kept from its
  // core.
  virtual Clock::time_point run(const std::function<void()>& job, Clock::time_point ready) = 0;
  // The same for a job of another lane, in whose place this thread does it.
  virtual void run_for_another(const std::function<void()>& job) = 0;
};

// May be used from several threads.
class RealDevice {
 public:
  virtual ~RealDevice() = default;

  // Bytes of its memory, until the tensor goes. Throws Error{OutOfMemory} if the limit would be
  // exceeded, and takes nothing.
  virtual at::Tensor allocate(int64_t bytes) = 0;
  // Whether the bytes of a tensor were taken from its memory.
  virtual bool owns(const at::Tensor& tensor) const = 0;
  virtual ArenaStatistics statistics() const = 0;
  virtual void reset_peak() = 0;
  // What messages about its memory say beside the numbers.
  virtual void set_context(std::function<std::string()> describe) = 0;
  // Throws Error{Internal} if memory was found misused, as far as the device notices.
  virtual void check() const = 0;
  // From which libtorch allocates on behalf of threads that are bound to it (ArenaScope); null if
  // it does not allocate from an arena.
  virtual Arena* arena() = 0;

  // From or to its memory, on the thread of a lane that copies. `alone`: nothing computes beside
  // it, and all threads may help.
  virtual void copy(const std::byte* from, std::byte* to, int64_t bytes, bool alone) = 0;

  // The calling thread becomes that of a lane: of Compute, its results lie in the device's memory.
  virtual std::unique_ptr<LaneWork> enter(LaneKind kind) = 0;
};

// What a device is made from.
struct DevicePlace {
  std::string name;  // begins messages
  int64_t limit = 0;
  int64_t unit = 1;      // that sizes are rounded to
  int threads = 1;       // that its kernels use
  double sharing = 1;    // as of ComputePacer
  bool guarded = false;  // memory notices misuse
};
using DeviceMaker = std::function<std::unique_ptr<RealDevice>(const DevicePlace&)>;
// A part of this host: an arena, and threads of its processor.
std::unique_ptr<RealDevice> make_cpu_device(const DevicePlace& place);

// A lane of a device: a thread and the jobs that are ready for it, in the order they became so.
class DeviceLane {
 public:
  using Clock = LaneWork::Clock;
  using Run = std::function<void(DeviceLane&, LaneWork&, int32_t job, Clock::time_point ready)>;

  // Refers to the device.
  DeviceLane(RealDevice& device, LaneKind kind) : device_(device), kind_(kind) {}

  // The thread begins, and calls `run` for each job; it owns that until it ends.
  void start(Run run);
  // `since`: when it became ready, by the clocks of devices.
  void post(int32_t job, Clock::time_point since);
  // Whether no job waits.
  bool idle();
  bool computes() const { return kind_ == LaneKind::Compute; }
  // No job is begun any more.
  void close();
  // After close(): waits for the thread, or leaves it alone.
  void join() { thread_.join(); }
  void leave() { thread_.detach(); }

  // A short job that became ready on this thread while nothing waited: done by it instead of waking
  // up the thread of another lane. Of the thread's own.
  int32_t chained = -1;

 private:
  struct Ready {
    int32_t job = -1;
    Clock::time_point since;
  };
  void work(const Run& run);

  RealDevice& device_;
  const LaneKind kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ready> ready_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace windlass
