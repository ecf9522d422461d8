#include "windlass/sim/host_time.h"

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

// Compute tasks in a row on one device.
class HostTime : public testing::Test {
 protected:
  HostTime() : machine_(load_machine("1x3090")) {
    machine_.nodes[0].core_speed = 1;
    graph_.teams.push_back({.devices = {DeviceId(0)}, .type = 0, .memory = MemoryId(0)});
    graph_.lanes.push_back({.kind = LaneKind::Compute, .team = TeamId(0), .receiver = {}});
    graph_.memories.push_back({.name = "gpu0", .team = TeamId(0), .hosts = {}, .limit = Bytes(1)});
    Kernel kernel;
    graph_.works.push_back({{kernel}});
    Kernel loss;
    loss.family = OpFamily::Loss;
    loss.read = Bytes(100);
    loss.written = Bytes(40);
    graph_.works.push_back({{loss}});
    costs_.host.forward_op = Seconds(10e-6);
    costs_.host.backward_op = Seconds(20e-6);
  }

  void add(TaskKind kind, Nanoseconds device, int32_t work = 0) {
    const std::vector<LaneId> on = {LaneId(0)};
    graph_.add({.kind = kind, .price = work, .micro_batch = 0, .op = OpId(0)}, on, {}, {});
    times_.duration.push_back(device);
    times_.workspace.push_back(0);
  }
  std::vector<Nanoseconds> durations() {
    add_runner_costs(graph_, machine_, costs_, times_);
    return times_.duration;
  }

  Machine machine_;
  TaskGraph graph_;
  TaskTimes times_;
  RunnerCosts costs_;
};

// Ops are issued at 10, 20, 30 us. The first ends at 40 us; the others are there by then.
TEST_F(HostTime, RunsAhead) {
  add(TaskKind::Forward, 30'000);
  add(TaskKind::Forward, 5'000);
  add(TaskKind::Forward, 5'000);
  EXPECT_EQ(durations(), (std::vector<Nanoseconds>{40'000, 5'000, 5'000}));
}

// Issued at 10, 20 and 40 us; a short op waits for the next one.
TEST_F(HostTime, ShortOpsWait) {
  add(TaskKind::Forward, 1'000);
  add(TaskKind::Forward, 1'000);
  add(TaskKind::Backward, 1'000);
  EXPECT_EQ(durations(), (std::vector<Nanoseconds>{11'000, 10'000, 20'000}));
}

TEST_F(HostTime, LossesMakeCopies) {
  costs_.loss_copies = 1;
  costs_.loss_backward_copies = 2;
  add(TaskKind::Forward, 1, 1);
  add(TaskKind::Backward, 1, 1);
  durations();
  EXPECT_EQ(times_.workspace, (std::vector<int64_t>{100, 80}));
}

// A host whose cores are twice as fast issues at 5 and 15 us.
TEST_F(HostTime, FollowsTheCoresOfTheHost) {
  machine_.nodes[0].core_speed = 2;
  add(TaskKind::Forward, 1'000);
  add(TaskKind::Backward, 1'000);
  EXPECT_EQ(durations(), (std::vector<Nanoseconds>{6'000, 10'000}));
}

// Twice as long as other ops of its pass: issued at 20 and 60 us.
TEST_F(HostTime, ConvolutionsTakeLonger) {
  costs_.host.convolution_op = Seconds(20e-6);
  Kernel convolution;
  convolution.family = OpFamily::Convolution;
  graph_.works.push_back({{convolution}});
  add(TaskKind::Forward, 1'000, 2);
  add(TaskKind::Backward, 1'000, 2);
  EXPECT_EQ(durations(), (std::vector<Nanoseconds>{21'000, 40'000}));
}

// What libraries keep is there in every phase; it takes the place of what products would ask for.
TEST_F(HostTime, LibrariesKeepTheirWorkspace) {
  costs_.library_workspace = Bytes(1000);
  add(TaskKind::Forward, 1);
  add(TaskKind::Update, 1);
  durations();
  EXPECT_EQ(times_.workspace, (std::vector<int64_t>{1000, 1000}));
}

// The step is no shorter than the host or the device alone, and no longer than both in turn.
TEST_F(HostTime, LiesBetweenItsBounds) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    graph_.clear_tasks();
    times_ = {};
    Nanoseconds host = 0, device = 0;
    const auto count = 1 + static_cast<int>(rng.integer(0, 19));
    for (int i = 0; i < count; ++i) {
      const bool back = rng.chance(0.5);
      const auto time = static_cast<Nanoseconds>(rng.integer(1, 40000));
      add(back ? TaskKind::Backward : TaskKind::Forward, time);
      host += back ? 20'000 : 10'000;
      device += time;
    }
    // The queue, op by op.
    Nanoseconds issued = 0, done = 0;
    for (size_t i = 0; i < graph_.size(); ++i) {
      issued += graph_.tasks[i].kind == TaskKind::Backward ? 20'000 : 10'000;
      done = std::max(issued, done) + times_.duration[i];
    }
    Nanoseconds sum = 0;
    for (Nanoseconds time : durations()) sum += time;
    EXPECT_EQ(sum, done);
    EXPECT_GE(sum, std::max(host, device));
    EXPECT_LE(sum, host + device);
  }
}

}  // namespace
}  // namespace windlass
