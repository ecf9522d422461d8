// What goes wrong on one of several devices ends the step on all of them, with the task and its
// devices named; what hangs is noticed.

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <new>
#include <stdexcept>

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/runtime/device_case.h"

namespace windlass {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_runs::DeviceCase;
using testing_runs::RunSettings;

RunSettings failing(int32_t task, int32_t part, const std::function<void()>& fails) {
  RunSettings settings;
  settings.delay = [=](int32_t at, int32_t which) {
    if (at == task && which == part) fails();
  };
  return settings;
}

TEST(Failures, AnExceptionInACollectiveNamesItsDevices) {
  const DeviceCase three("data-parallel", 3);
  const int32_t reduce = three.task_of(TaskKind::Reduce);
  const Error error =
      three.error_of(failing(reduce, -1, [] { throw std::runtime_error("the wire was cut"); }));
  EXPECT_EQ(error.kind(), ErrorKind::Runtime);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("reduce"), HasSubstr(", on gpu0, gpu1, gpu2: "),
                                     HasSubstr("the wire was cut")));

  const DeviceCase stages("gpipe:micro-batches=2", 2);
  const int32_t send = stages.task_of(TaskKind::Send);
  const Error sent =
      stages.error_of(failing(send, -1, [] { throw std::runtime_error("the wire was cut"); }));
  EXPECT_THAT(sent.message(), AllOf(HasSubstr("send"), HasSubstr(", on gpu1 to gpu0: ")));
}

TEST(Failures, OutOfMemoryInAKernelNamesItsDevice) {
  const DeviceCase two("data-parallel", 2);
  const int32_t backward = two.task_of(TaskKind::Backward);
  for (int32_t part = 0; part < 2; ++part) {
    const Error error = two.error_of(failing(backward, part, [] { throw std::bad_alloc(); }));
    EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("backward"), HasSubstr(fmt::format(", on gpu{}: ", part)),
                      HasSubstr("no memory to give")));
  }
}

// A kernel that takes more than it was priced with meets the limit of its device.
TEST(Failures, TheLimitOfADeviceHolds) {
  DeviceCase two("data-parallel", 2);
  for (Device& device : two.machine.devices) device.limit = Bytes(two.step.result.peaks[0].bytes);
  const int32_t backward = two.task_of(TaskKind::Backward);
  const Error error = two.error_of(failing(backward, 1, [] {
    // On the thread of the device, from the device's memory.
    const std::vector<at::Tensor> all(1, at::empty({1 << 24}));
    FAIL() << "more than the limit";
  }));
  EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("backward"), HasSubstr(", on gpu1: ")));
}

TEST(Failures, ALossThatIsNoNumberNamesItsDevice) {
  const DeviceCase stages("gpipe:micro-batches=2", 2);
  StepStart from = stages.start;
  for (Array& array : from.values)
    for (double& value : array.values) value = std::nan("");
  const Error error = stages.error_of({}, from);
  EXPECT_EQ(error.kind(), ErrorKind::Runtime);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("forward"), HasSubstr(", on gpu1: the loss is nan")));
}

// A gate that a task waits at until it is opened.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(Failures, ALateTaskIsReportedAndTheRunGoesOn) {
  const DeviceCase two("data-parallel", 2);
  const int32_t backward = two.task_of(TaskKind::Backward);
  Gate gate;
  std::vector<std::string> messages;
  RunSettings settings = failing(backward, 1, [&] { gate.wait(); });
  settings.watch = {.late_after = 0.02, .late = [&](const std::string& message) {
                      messages.push_back(message);
                      if (message.starts_with("backward")) gate.open();
                    }};
  two.run(settings);  // ends, for the task is waited for until it is reported
  EXPECT_THAT(messages,
              testing::Contains(AllOf(HasSubstr("backward"), HasSubstr(", on gpu1: late"),
                                      HasSubstr("predicted"), HasSubstr("waiting for it: "))));
}

// What a thread that is left alone may still use: it is never taken away, not at the end either.
struct Hanging {
  DeviceCase two{"data-parallel", 2};
  Gate gate;
  RunSettings settings = failing(two.task_of(TaskKind::Reduce), -1, [this] { gate.wait(); });
};

TEST(Failures, AStandstillEndsTheRunThoughAThreadHangs) {
  static Hanging& hanging = *new Hanging;
  RunSettings settings = hanging.settings;
  std::string told;
  settings.watch = {.give_up_after = 0.1, .grace = 0.01, .stuck = [&](const Error& error) {
                      told = error.message();
                    }};
  const Error error = hanging.two.error_of(settings);
  hanging.gate.open();
  EXPECT_EQ(error.kind(), ErrorKind::Runtime);
  EXPECT_EQ(error.message(), told);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("nothing has gone on for"), HasSubstr("under way: reduce"),
                    HasSubstr(", on gpu0, gpu1 (for "), HasSubstr("; waiting: ")));
}

// An error elsewhere is not lost behind a thread that hangs.
TEST(Failures, AnErrorBesideAThreadThatHangsIsTold) {
  static DeviceCase& two = *new DeviceCase("data-parallel", 2);
  static Gate& gate = *new Gate;
  const int32_t backward = two.task_of(TaskKind::Backward);
  RunSettings settings;
  settings.delay = [backward](int32_t task, int32_t part) {
    if (task != backward) return;
    if (part == 1) throw std::runtime_error("the card fell out");
    gate.wait();
  };
  settings.watch = {.give_up_after = 0.1, .grace = 0.01};
  const Error error = two.error_of(settings);
  gate.open();
  EXPECT_THAT(error.message(), AllOf(HasSubstr(", on gpu1: "), HasSubstr("the card fell out")));
}

}  // namespace
}  // namespace windlass
