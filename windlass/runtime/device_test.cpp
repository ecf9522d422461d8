#include "windlass/runtime/device.h"

#include <atomic>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/runtime/device_case.h"
#include "windlass/runtime/fake_device.h"

namespace windlass {
namespace {

using testing_runs::DeviceCase;
using testing_runs::fake_devices;
using testing_runs::FakeOrders;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

RunEnd run_on_fakes(const DeviceCase& c, FakeOrders& orders, int steps = 2) {
  RunSettings settings = {.steps = steps};
  settings.make_device = fake_devices(orders);
  return testing_runs::run_steps(c.prepared.training, c.machine, c.step.tasks, c.step.times,
                                 c.step.result, c.start, find_batch(c.network), settings);
}

// Two devices and a host. Every device runs its kernels on its own lane; what is copied in and out
// is what tasks say.
TEST(RealDevice, LanesDoWhatTheTasksSay) {
  const DeviceCase two("data-parallel:host-weights=on,host-update=on", 2);
  FakeOrders orders;
  run_on_fakes(two, orders, 3);
  ASSERT_EQ(orders.counts.size(), 3U);
  int64_t computing = 0, swaps = 0, exchanging = 0;
  for (const Task& task : two.step.tasks.tasks) {
    computing += moves(task.kind) || task.kind == TaskKind::HostUpdate ? 0 : 1;
    exchanging += exchanges(task.kind) ? 1 : 0;
    swaps += task.kind == TaskKind::SwapIn || task.kind == TaskKind::SwapOut ? 1 : 0;
  }
  ASSERT_GT(swaps, 0);
  for (const char* device : {"gpu0", "gpu1"})
    EXPECT_EQ(orders.counts[device].jobs[LaneKind::Compute], 3 * computing) << device;
  int64_t copied = 0;
  for (const auto& [name, counts] : orders.counts) {
    // Only moves between devices are so short that another lane does them.
    EXPECT_LE(counts.for_others, 3 * exchanging) << name;
    // Each device brings and takes what is its own.
    int64_t copies = 0;
    for (const auto& [kind, jobs] : counts.jobs)
      copies += kind == LaneKind::SwapIn || kind == LaneKind::SwapOut ? jobs : 0;
    EXPECT_EQ(copies, name.starts_with("gpu") ? 3 * swaps : 0) << name;
    copied += counts.copied;
  }
  EXPECT_GT(copied, 0);
}

// The third time that a device is asked for memory while it runs it has none: the run ends with the
// task and the device named, and the others end as well.
TEST(RealDevice, AnAllocationThatFailsEndsTheRun) {
  const DeviceCase two("data-parallel:host-weights=on", 2);
  FakeOrders orders;
  std::atomic<bool> running = false;
  std::atomic<int> asked = 0;
  orders.working = [&](const std::string&, LaneKind) { running = true; };
  orders.allocating = [&](const std::string& device, int64_t bytes) {
    if (running && device == "gpu1" && ++asked == 3)
      fail(ErrorKind::OutOfMemory, "{}: no {} bytes", device, bytes);
  };
  try {
    run_on_fakes(two, orders);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
    EXPECT_THAT(error.message(),
                testing::AllOf(testing::HasSubstr("gpu1: no "), testing::HasSubstr("swap-in ")));
  }
}

// Late copies, or late kernels: the same bits.
TEST(RealDevice, LateLanesChangeNothing) {
  const DeviceCase two("gpipe:micro-batches=2,host-weights=on,host-update=on", 2);
  FakeOrders prompt;
  const RunEnd expected = run_on_fakes(two, prompt);
  for (LaneKind late : {LaneKind::Compute, LaneKind::SwapIn, LaneKind::SwapOut, LaneKind::Host}) {
    FakeOrders orders;
    std::atomic<uint64_t> number = 0;
    orders.working = [&](const std::string&, LaneKind kind) {
      if (kind == late)
        std::this_thread::sleep_for(std::chrono::microseconds(random_bits(1, 2, ++number) % 500));
    };
    const RunEnd found = run_on_fakes(two, orders);
    EXPECT_EQ(found.losses, expected.losses) << lane_kind_name(late);
    EXPECT_TRUE(found.last.bits == expected.last.bits) << lane_kind_name(late);
  }
}

// A device by itself: bytes are counted, and the limit holds.
TEST(RealDevice, CountsItsBytes) {
  const std::unique_ptr<RealDevice> device =
      make_cpu_device({.name = "cpu0", .limit = 1024, .unit = 512});
  at::Tensor first = device->allocate(100);
  EXPECT_EQ(first.nbytes(), 100U);
  EXPECT_TRUE(device->owns(first));
  EXPECT_EQ(device->statistics().live, 512);
  const at::Tensor second = device->allocate(512);
  EXPECT_THROW(device->allocate(1), Error);
  first.reset();
  EXPECT_EQ(device->statistics().live, 512);
  EXPECT_EQ(device->statistics().peak, 1024);
  const std::unique_ptr<RealDevice> other = make_cpu_device({.name = "cpu1", .limit = 1024});
  EXPECT_FALSE(other->owns(second));
}

}  // namespace
}  // namespace windlass
