#include "windlass/sim/simulate.h"

#include <gtest/gtest.h>

#include "windlass/sim/hand_made.h"
#include "windlass/sim/reference/naive.h"
#include "windlass/sim/timeline_check.h"

namespace windlass {
namespace {

using Times = std::vector<Nanoseconds>;

// Of both simulators, which must agree, on a timeline without faults.
SimResult run(const HandMade& made, const SimOptions& options = {}) {
  check_task_graph(made.graph);
  Simulator simulator;
  SimResult result = simulator.run(made.graph, made.times, options);
  const SimResult naive = simulate_naively(made.graph, made.times, options);
  EXPECT_EQ(result.status, naive.status);
  EXPECT_EQ(result.start, naive.start);
  EXPECT_EQ(result.end, naive.end);
  EXPECT_EQ(check_timeline(made.graph, made.times, result), std::vector<std::string>{});
  return result;
}

TEST(Simulate, EmptyGraph) {
  HandMade made({LaneKind::Compute});
  made.buffer(40, true);
  const SimResult result = run(made);
  EXPECT_EQ(result.status, SimStatus::Done);
  EXPECT_EQ(result.makespan, 0);
  EXPECT_EQ(result.peaks[0].bytes, 40);
  EXPECT_FALSE(result.peaks[0].task.valid());
}

TEST(Simulate, CopyAndComputeOverlap) {
  HandMade made({LaneKind::Compute, LaneKind::SwapIn});
  const int32_t load = made.traffic(90, {{made.link(1), kLoadUnit}});
  // Copies of 10 + 90 ns follow each other; computing 70 ns on each follows its copy.
  const TaskId copy0 = made.task(TaskKind::SwapIn, {1}, 10, {}, {}, load);
  made.compute(70, {copy0});
  const TaskId copy1 = made.task(TaskKind::SwapIn, {1}, 10, {}, {}, load);
  made.compute(70, {copy1});
  const SimResult result = run(made);
  EXPECT_EQ(result.start, (Times{0, 100, 100, 200}));
  EXPECT_EQ(result.end, (Times{100, 170, 200, 270}));
  EXPECT_EQ(result.makespan, 270);
}

TEST(Simulate, TwoTransfersShareALinkThenOneSpeedsUp) {
  HandMade made({LaneKind::Compute, LaneKind::SwapIn, LaneKind::Send});
  const int32_t load = made.traffic(100, {{made.link(1), kLoadUnit}});
  made.task(TaskKind::SwapIn, {1}, 0, {}, {}, load);
  const TaskId wait = made.compute(50);
  made.task(TaskKind::Send, {2}, 0, {wait}, {}, load);
  // Until 50 the first moves 50 bytes alone. Its other 50 at half the rate take until 150. The
  // second then has 50 left, alone: until 200.
  EXPECT_EQ(run(made).end, (Times{150, 50, 200}));
}

TEST(Simulate, LatencyDoesNotLoadTheLink) {
  HandMade made({LaneKind::SwapIn, LaneKind::Send});
  const int32_t load = made.traffic(100, {{made.link(1), kLoadUnit}});
  made.task(TaskKind::SwapIn, {0}, 0, {}, {}, load);
  made.task(TaskKind::Send, {1}, 100, {}, {}, load);
  EXPECT_EQ(run(made).end, (Times{100, 200}));
}

TEST(Simulate, WeightsScaleTheLoad) {
  HandMade made({LaneKind::SwapIn, LaneKind::Reduce});
  const int32_t link = made.link(3);
  made.task(TaskKind::SwapIn, {0}, 0, {}, {}, made.traffic(100, {{link, kLoadUnit}}));
  // Two bytes cross the link for each byte of volume.
  made.task(TaskKind::Reduce, {1}, 0, {}, {}, made.traffic(150, {{link, 2 * kLoadUnit}}));
  // Together 3 / (1 + 2) = 1 byte/ns each: the first ends at 100. The second then has 50 left at
  // 3 / 2 bytes/ns: 33.3 ns, in whole nanoseconds 34.
  EXPECT_EQ(run(made).end, (Times{100, 134}));
}

TEST(Simulate, ThreeFlowsOnTwoLinksAreMaxMinFair) {
  HandMade made({LaneKind::SwapIn, LaneKind::Reduce, LaneKind::Send});
  const int32_t narrow = made.link(2);
  const int32_t wide = made.link(4);
  made.task(TaskKind::SwapIn, {0}, 0, {}, {}, made.traffic(100, {{narrow, kLoadUnit}}));
  made.task(TaskKind::Reduce, {1}, 0, {}, {},
            made.traffic(200, {{narrow, kLoadUnit}, {wide, kLoadUnit}}));
  made.task(TaskKind::Send, {2}, 0, {}, {}, made.traffic(300, {{wide, kLoadUnit}}));
  // The narrow link offers 2 / 2 = 1, the wide one 4 / 2 = 2: the first two get 1, the third the
  // 3 that are left of the wide one. At 100 the first and the third end; the second has 100 left
  // at min(2, 4) = 2.
  EXPECT_EQ(run(made).end, (Times{100, 150, 100}));
}

TEST(Simulate, TrafficThatLoadsNothingTakesItsLatency) {
  HandMade made({LaneKind::Send});
  const int32_t nothing = made.traffic(100, {});
  made.task(TaskKind::Send, {0}, 7, {}, {}, nothing);
  made.task(TaskKind::Send, {0}, 0, {}, {}, nothing);
  EXPECT_EQ(run(made).end, (Times{7, 8}));
}

TEST(Simulate, LanesRunInOrder) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  // The second lane's first task waits until 30; what is behind it could start but does not.
  const TaskId first = made.compute(30);
  made.compute(5, {first}, {}, 1);
  made.compute(5, {}, {}, 1);
  EXPECT_EQ(run(made).start, (Times{0, 30, 35}));
}

TEST(Simulate, TaskOnTwoLanesHoldsBoth) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  made.compute(10, {}, {}, 0);
  made.compute(25, {}, {}, 1);
  made.task(TaskKind::Forward, {1, 0}, 5);
  made.compute(10, {}, {}, 0);
  made.compute(10, {}, {}, 1);
  EXPECT_EQ(run(made).start, (Times{0, 0, 25, 30, 30}));
}

TEST(Simulate, TaskWaitsForMemory) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  made.compute(40, {}, {made.buffer(70)}, 0);
  made.compute(10, {}, {made.buffer(50)}, 1);
  const SimResult result = run(made);
  EXPECT_EQ(result.start, (Times{0, 40}));
  // 70 bytes from 0 to 40, 50 from 40 on: what ends at 40 is released before the next one starts.
  EXPECT_EQ(result.peaks[0].bytes, 70);
  EXPECT_EQ(result.peaks[0].time, 0);
  EXPECT_EQ(result.peaks[0].task, TaskId(0));

  SimOptions unlimited;
  unlimited.enforce_limits = false;
  EXPECT_EQ(run(made, unlimited).peaks[0].bytes, 120);
}

TEST(Simulate, LowerIdsTakeMemoryFirst) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate, LaneKind::Send});
  made.compute(10, {}, {made.buffer(60)}, 2);
  made.compute(10, {}, {made.buffer(60)}, 1);
  made.compute(10, {}, {made.buffer(40)}, 0);
  // Task 1 does not fit beside task 0, task 2 does. At 10 both have ended.
  EXPECT_EQ(run(made).start, (Times{0, 10, 0}));
}

TEST(Simulate, WorkspaceCounts) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  made.task(TaskKind::Forward, {0}, 20, {}, {made.buffer(30)}, 0, 40);
  made.compute(5, {}, {made.buffer(31)}, 1);
  const SimResult result = run(made);
  EXPECT_EQ(result.start, (Times{0, 20}));
  EXPECT_EQ(result.peaks[0].bytes, 70);
}

TEST(Simulate, BuffersLiveToTheEndOfTheirLastUse) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  const BufferId shared = made.buffer(50);
  // The use with the larger id ends first.
  made.compute(40, {}, {shared}, 0);
  made.compute(10, {}, {shared}, 1);
  made.compute(10, {}, {made.buffer(60)}, 1);
  const SimResult result = run(made);
  EXPECT_EQ(result.start, (Times{0, 0, 40}));
  EXPECT_EQ(alive_at(made.graph, result, MemoryId(0), 39), std::vector{shared});
  EXPECT_EQ(alive_at(made.graph, result, MemoryId(0), 40), std::vector{BufferId(1)});
}

TEST(Simulate, BuffersOfTheStartAndTheEnd) {
  HandMade made({LaneKind::Compute});
  const BufferId input = made.buffer(10, true, false);
  made.buffer(20, true, true);
  const BufferId output = made.buffer(30, false, true);
  made.buffer(5, true, false);   // no task uses it: live all the time
  made.buffer(99, false, true);  // nor this: never live
  made.compute(10, {}, {input});
  made.compute(10, {}, {output});
  const SimResult result = run(made);
  // At the start 10 + 20 + 5; from 10 on 20 + 30 + 5.
  EXPECT_EQ(result.peaks[0].bytes, 55);
  EXPECT_EQ(result.peaks[0].time, 10);
  EXPECT_EQ(result.peaks[0].task, TaskId(1));
  EXPECT_EQ(alive_at(made.graph, result, MemoryId(0), 20),
            (std::vector{output, BufferId(1), BufferId(3)}));
}

TEST(Simulate, OutOfMemorySaysWhatIsMissing) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  made.buffer(40, true, true);
  made.compute(10, {}, {made.buffer(30)}, 1);
  made.compute(10, {}, {made.buffer(80)}, 0);
  made.compute(10, {}, {}, 0);
  const SimResult result = run(made);
  EXPECT_EQ(result.status, SimStatus::OutOfMemory);
  EXPECT_EQ(result.failed_task, TaskId(1));
  EXPECT_EQ(result.failed_memory, MemoryId(0));
  EXPECT_EQ(result.missing_bytes, 20);  // 40 + 80 - 100; the 30 are released
  EXPECT_EQ(result.makespan, 10);
  EXPECT_EQ(result.start, (Times{0, -1, -1}));
}

TEST(Simulate, NothingRunsIfTheStartDoesNotFit) {
  HandMade made({LaneKind::Compute});
  made.buffer(120, true);
  made.compute(10);
  const SimResult result = run(made);
  EXPECT_EQ(result.status, SimStatus::OutOfMemory);
  EXPECT_FALSE(result.failed_task.valid());
  EXPECT_EQ(result.missing_bytes, 20);
  EXPECT_EQ(result.start, (Times{-1}));
}

TEST(Simulate, DeadlockNamesTheCycle) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  made.compute(10, {});
  made.compute(10, {TaskId(2)});         // waits for 2,
  made.compute(10, {TaskId(3)}, {}, 1);  // which waits for 3,
  made.compute(10, {}, {}, 0);           // which is behind 1 on its lane
  const SimResult result = run(made);
  EXPECT_EQ(result.status, SimStatus::Deadlock);
  EXPECT_EQ(result.cycle, (std::vector{TaskId(1), TaskId(2), TaskId(3)}));
  EXPECT_EQ(result.end, (Times{10, -1, -1, -1}));
}

// Works with k kernels take k / 3 ns on a device and k us on a host.
class KernelCount : public CostModel {
 public:
  Price price(const Work& work, const DeviceType&) const override {
    return {Seconds(static_cast<double>(work.kernels.size()) / 3e9), Bytes(64)};
  }
  Price price_on_host(const Work& work, const Node&) const override {
    return {Seconds(static_cast<double>(work.kernels.size()) * 1e-6), Bytes(64)};
  }
  Seconds step_overhead(const DeviceType&) const override { return Seconds(0); }
  std::string provenance() const override { return "a test"; }
};

TEST(Simulate, PricesTasks) {
  HandMade made({LaneKind::Compute, LaneKind::Host, LaneKind::Send});
  made.graph.works[0].kernels.resize(1);
  made.graph.works.emplace_back().kernels.resize(5);
  made.traffic(1, {});
  made.graph.traffics[0].latency = Seconds(2.4e-9);
  made.task(TaskKind::Forward, {0}, 0, {}, {}, 0);
  made.task(TaskKind::Forward, {0}, 0, {}, {}, 1);
  made.task(TaskKind::HostUpdate, {1}, 0, {}, {}, 1);
  made.task(TaskKind::Send, {2}, 0, {}, {}, 0);
  Machine machine;
  machine.device_types.resize(1);
  machine.nodes.resize(1);
  machine.devices.resize(1);
  machine.devices[0].node = NodeId(0);
  const TaskTimes times = price_tasks(made.graph, machine, KernelCount());
  // 1/3 ns is at least 1; 5/3 ns rounds to 2; latency 2.4 ns rounds to 2.
  EXPECT_EQ(times.duration, (Times{1, 2, 5000, 2}));
  EXPECT_EQ(times.workspace, (std::vector<int64_t>{64, 64, 0, 0}));
  made.graph.memories[0].limit = Bytes(64);
  EXPECT_EQ(simulate(made.graph, machine, KernelCount()).makespan, 5000);
}

}  // namespace
}  // namespace windlass
