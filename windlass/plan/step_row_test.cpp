#include "windlass/plan/step_row.h"

#include <gtest/gtest.h>

#include "windlass/sim/hand_made.h"

namespace windlass {
namespace {

// A weight of 10 bytes on the host and data of 5 on the device. A step copies the weight in (on
// lane 1, 10 ns), computes with it and the data for 20 ns (lane 0), computes for 30 ns with a
// weight of its own (lane 0), and updates the first weight on the host for 40 ns (lane 2).
struct HostUpdatedStep : HandMade {
  explicit HostUpdatedStep(int64_t limit = 100)
      : HandMade({LaneKind::Compute, LaneKind::SwapIn, LaneKind::Host}, limit) {
    weight = buffer(10, true, true, 1);
    data = buffer(5, true);
    copy = buffer(10);
    other = buffer(7, true, true);
    const int32_t nothing = traffic(0, {});
    in = add(TaskKind::SwapIn, 1, 10, nothing, {}, {{weight, false}, {copy, true}});
    first = add(TaskKind::Forward, 0, 20, 0, {in}, {{copy, false}, {data, false}});
    second = add(TaskKind::Backward, 0, 30, 0, {}, {{other, true}});
    update = add(TaskKind::HostUpdate, 2, 40, 0, {first}, {{weight, true}});
  }

  TaskId add(TaskKind kind, int lane, Nanoseconds time, int32_t price,
             const std::vector<TaskId>& after, const std::vector<std::pair<BufferId, bool>>& used) {
    Task made;
    made.kind = kind;
    made.price = price;
    const std::vector<LaneId> on = {LaneId(lane)};
    std::vector<Use> uses;
    for (const auto& [id, write] : used) uses.push_back({id, write});
    times.duration.push_back(time);
    times.workspace.push_back(0);
    return graph.add(made, on, after, uses);
  }

  SimulatedStep simulated() const {
    SimulatedStep step;
    step.tasks = graph;
    step.times = times;
    Simulator simulator;
    step.result = simulator.run(graph, times);
    return step;
  }

  BufferId weight, data, copy, other;
  TaskId in, first, second, update;
};

TEST(StepRow, AWeightWaitsForItsUpdateAndNothingElseDoes) {
  const HostUpdatedStep step;
  const StepRow row = chain_steps(step.graph, step.times, 2, RowStart::Free);
  ASSERT_EQ(row.tasks.size(), 8U);
  const auto before = [&](TaskId id) {
    const auto list = row.tasks.predecessors_of(TaskId(id.index() + 4));
    return std::vector<TaskId>(list.begin(), list.end());
  };
  EXPECT_EQ(before(step.in), std::vector<TaskId>{step.update});
  EXPECT_EQ(before(step.first), std::vector<TaskId>{TaskId(4)});
  EXPECT_EQ(before(step.second), std::vector<TaskId>{step.second});
  EXPECT_EQ(before(step.update), (std::vector<TaskId>{step.update, TaskId(5)}));
  // What rests is the same; data and copy of the second step are its own.
  EXPECT_EQ(row.tasks.buffers.size(), 6U);
  EXPECT_EQ(row.tasks.uses_of(TaskId(4))[0].buffer, step.weight);
  EXPECT_EQ(row.tasks.uses_of(TaskId(5))[1].buffer, BufferId(4));
  EXPECT_FALSE(row.tasks.buffers[4].at_start);
  EXPECT_EQ(row.shape.brought, (std::vector<bool>{false, false, false, false, true, false}));
}

// Alone: 10 + 20, then 30 and 40 side by side: 70. In a row the second step copies in at 70, when
// the update is done, computes at 80, and is over at 100 + 40: here nothing is gained. With a
// second computation of 60 that ends at 90, a step takes 90: the next one copies in beside it at
// 70, computes at 90 and at 110, and is over at 170 instead of 180.
TEST(StepRow, TheNextStepBeginsBeforeTheLastTasksAreDone) {
  HostUpdatedStep step;
  StepRow row = make_row(step.simulated(), 2);
  EXPECT_EQ(row.result.makespan, 140);
  step.times.duration[step.second.index()] = 60;
  EXPECT_EQ(step.simulated().result.makespan, 90);
  row = make_row(step.simulated(), 2);
  EXPECT_EQ(row.start, RowStart::Free);
  EXPECT_EQ(row.result.makespan, 170);
  EXPECT_EQ(row.ends(), (std::vector<Nanoseconds>{90, 170}));
  EXPECT_EQ(row.result.start[4], 70);

  const SimulatedStep typical = step_of_row(step.simulated(), row);
  EXPECT_EQ(typical.result.makespan, 80);
  EXPECT_EQ(typical.result.start, (std::vector<Nanoseconds>{0, 20, 40, 40}));
  EXPECT_EQ(typical.result.end, (std::vector<Nanoseconds>{10, 40, 100, 80}));
}

// The device has 7 for a weight of its own, 5 for data and 10 for a copy at the start. While the
// second computation, with 60 bytes of workspace, runs, the copy of the next step fits into 80, and
// with a limit of 70 waits for its end.
TEST(StepRow, PeaksStayInsideOfTheLimits) {
  HostUpdatedStep step;
  step.times.duration[step.second.index()] = 60;
  step.times.workspace[step.second.index()] = 60;
  EXPECT_EQ(step.simulated().result.peaks[0].bytes, 67);
  EXPECT_EQ(make_row(step.simulated(), 2).result.peaks[0].bytes, 77);
  step.graph.memories[0].limit = Bytes(70);
  const StepRow row = make_row(step.simulated(), 2);
  EXPECT_EQ(row.result.status, SimStatus::Done);
  EXPECT_EQ(row.result.peaks[0].bytes, 67);
  EXPECT_EQ(row.result.makespan, 180);
}

// A later copy that comes first takes what a task of the step before needs: with the rest of 15 the
// copy of 10 may begin at 70, and the last task of the first step, which wants 12 at 90, never
// would. After the gradients of the first step it is in time.
TEST(StepRow, BeginsLaterWhereMemoryIsShort) {
  HostUpdatedStep step(22);
  step.times.duration[step.second.index()] = 60;
  const BufferId more = step.buffer(12);
  step.add(TaskKind::Backward, 0, 5, 0, {}, {{more, true}});
  const SimulatedStep alone = step.simulated();
  ASSERT_EQ(alone.result.status, SimStatus::Done);
  const StepRow row = make_row(alone, 3);
  EXPECT_EQ(row.result.status, SimStatus::Done);
  EXPECT_EQ(row.start, RowStart::AfterBackward);
  EXPECT_LE(row.result.peaks[0].bytes, 22);
}

// Two weights on the host, A and B, each 10 ns of a forward pass; the backward pass takes 20, and
// then B is updated for 40 and A for 40: 120 in all. The next step wants A, which comes last, and
// nothing is gained. If A is updated first, at 40, the next step begins with it at 80, beside the
// update of B, has B at 120, computes to 150, updates A at 150 and B at 190 to 230.
TEST(StepRow, LateUpdatesAreDoneAsTheNextStepNeedsThem) {
  HandMade hand({LaneKind::Compute, LaneKind::Host});
  const BufferId a = hand.buffer(1, true, true, 1), b = hand.buffer(1, true, true, 1);
  const auto add = [&](TaskKind kind, int lane, Nanoseconds time, const std::vector<TaskId>& after,
                       const std::vector<Use>& uses) {
    Task made;
    made.kind = kind;
    made.price = 0;
    const std::vector<LaneId> on = {LaneId(lane)};
    hand.times.duration.push_back(time);
    hand.times.workspace.push_back(0);
    return hand.graph.add(made, on, after, uses);
  };
  add(TaskKind::Forward, 0, 10, {}, {{a, false}});
  add(TaskKind::Forward, 0, 10, {}, {{b, false}});
  const TaskId back = add(TaskKind::Backward, 0, 20, {}, {});
  const TaskId of_b = add(TaskKind::HostUpdate, 1, 40, {back}, {{b, true}});
  const TaskId of_a = add(TaskKind::HostUpdate, 1, 40, {back}, {{a, true}});
  SimulatedStep step;
  step.tasks = hand.graph;
  step.times = hand.times;
  Simulator simulator;
  step.result = simulator.run(hand.graph, hand.times);
  EXPECT_EQ(step.result.makespan, 120);
  EXPECT_EQ(late_updates(step), (std::vector<TaskId>{of_a, of_b}));
  const StepRow plain = chain_steps(hand.graph, hand.times, 2, RowStart::Free);
  EXPECT_EQ(simulator.run(plain.tasks, plain.times).makespan, 240);
  const StepRow row = make_row(step, 2);
  EXPECT_EQ(row.shape.original(3), of_a);
  EXPECT_EQ(row.result.makespan, 230);
  // The tasks of a step in the row are told by their own numbers: 80 is its beginning.
  EXPECT_EQ(step_of_row(step, row).result.start, (std::vector<Nanoseconds>{0, 40, 50, 110, 70}));
}

TEST(StepRow, StepsThatHandOnPagesCannot) {
  HostUpdatedStep step;
  EXPECT_EQ(cannot_row(step.graph), "");
  step.graph.carried.push_back({step.copy, step.data});
  EXPECT_NE(cannot_row(step.graph), "");
}

}  // namespace
}  // namespace windlass
