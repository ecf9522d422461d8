// Graphs that repeat: a run that has come round against one that goes on.

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/sim/hand_made.h"

namespace windlass {
namespace {

// Two copies of 10 + 90 ns and 70 ns of computing on each, again and again. A copy takes the place
// of its like in the repetition before, when that has been computed on.
struct Pipeline {
  HandMade made{LaneKind::Compute, LaneKind::SwapIn};
  std::vector<TaskId> computed;

  explicit Pipeline(size_t repetitions) {
    const int32_t load = made.traffic(90, {{made.link(1), kLoadUnit}});
    for (size_t i = 0; i < 2 * repetitions; ++i) {
      std::vector<TaskId> room;
      if (i >= 2) room.push_back(computed[i - 2]);
      const TaskId copy = made.task(TaskKind::SwapIn, {1}, 10, room, {}, load);
      computed.push_back(made.compute(70, {copy}));
    }
  }
};

TEST(Recurrence, StopsWhenItHasComeRound) {
  const Pipeline pipeline(8);
  const std::vector<TaskId> marks{pipeline.computed.front()};
  const Repetition repetition{4, marks};
  Simulator simulator;
  const SimResult& result = simulator.run(pipeline.made.graph, pipeline.made.times,
                                          {.enforce_limits = true, .repetition = &repetition});
  EXPECT_EQ(result.status, SimStatus::Done);
  EXPECT_TRUE(result.came_round);
  EXPECT_EQ(result.period, 200);
  EXPECT_LT(result.ended, pipeline.made.graph.size());
  EXPECT_EQ(result.end.back(), -1);
  EXPECT_EQ(result.start.back(), -1);
}

TEST(Recurrence, SaysThePeriodOfTheLastMarkOtherwise) {
  const Pipeline pipeline(2);
  const std::vector<TaskId> marks{pipeline.computed[1]};
  const Repetition repetition{4, marks};
  Simulator simulator;
  // At that mark of the first repetition a copy of the second is under way, but the graph does not
  // have the one that would be under way at the second.
  const SimResult& result = simulator.run(pipeline.made.graph, pipeline.made.times,
                                          {.enforce_limits = true, .repetition = &repetition});
  EXPECT_FALSE(result.came_round);
  EXPECT_EQ(result.period, 200);
  EXPECT_EQ(result.ended, 8U);
}

// Lanes and links that are shared, tasks that wait for some of the same repetition and of the one
// before.
struct RandomRepetitions {
  HandMade made{LaneKind::Compute, LaneKind::Compute, LaneKind::SwapIn, LaneKind::SwapOut};
  size_t tasks = 0;
  std::vector<TaskId> marks;

  RandomRepetitions(uint64_t seed, size_t repetitions) {
    Rng shape(seed);
    tasks = static_cast<size_t>(shape.integer(4, 24));
    const int32_t link = made.link(static_cast<double>(shape.integer(1, 3)));
    for (int i = 0; i < 3; ++i)
      made.traffic(shape.integer(1, 400), {{link, kLoadUnit * shape.integer(1, 2)}});
    for (size_t r = 0; r < repetitions; ++r) {
      Rng rng(seed + 1);  // the same each time
      std::vector<BufferId> buffers;
      for (size_t i = 0; i < tasks; ++i) add(rng, r, i, buffers);
    }
    for (size_t i = 0; i < tasks; ++i)
      if (made.graph.task_lanes[i] == LaneId(0)) marks.emplace_back(i);
  }

  void add(Rng& rng, size_t repetition, size_t i, std::vector<BufferId>& buffers) {
    const auto lane = static_cast<int>(i == 0 ? 0 : rng.integer(0, 3));
    const size_t begin = repetition * tasks;
    std::vector<TaskId> after;
    for (int64_t k = rng.integer(0, 2); k > 0 && i > 0; --k)
      after.emplace_back(begin + static_cast<size_t>(rng.integer(0, static_cast<int64_t>(i) - 1)));
    for (int64_t k = rng.integer(0, 2); k > 0; --k) {
      const auto before = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(tasks) - 1));
      if (repetition > 0) after.emplace_back(begin - tasks + before);
    }
    buffers.push_back(made.buffer(rng.integer(1, 50)));
    const auto used = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(i)));
    const Nanoseconds time = rng.integer(1, 300);
    const auto price = static_cast<int32_t>(rng.integer(0, 2));
    const TaskKind kind = lane < 2    ? TaskKind::Forward
                          : lane == 2 ? TaskKind::SwapIn
                                      : TaskKind::SwapOut;
    made.task(kind, {lane}, lane < 2 ? time : time % 20, after, {buffers.back(), buffers[used]},
              lane < 2 ? 0 : price, lane < 2 ? time % 7 : 0);
  }
};

TEST(Recurrence, RunsOnAsItSays) {
  constexpr size_t kLong = 14, kShort = 4;
  int came_round = 0, stopped_early = 0;
  Simulator simulator;
  for (uint64_t seed = 0; seed < 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const RandomRepetitions few(10 * seed, kShort), many(10 * seed, kLong);
    const Repetition repetition{few.tasks, few.marks};
    const SimResult round = simulator.run(few.made.graph, few.made.times,
                                          {.enforce_limits = false, .repetition = &repetition});
    ASSERT_EQ(round.status, SimStatus::Done);
    if (!round.came_round) continue;
    ++came_round;
    const auto repetitions = (round.ended + few.tasks - 1) / few.tasks;
    stopped_early += repetitions < kShort;
    const SimResult& all =
        simulator.run(many.made.graph, many.made.times, {.enforce_limits = false});
    // Without what would come after the graph, its last repetitions may differ.
    for (size_t i = kShort * few.tasks; i + 4 * few.tasks < many.made.graph.size(); ++i) {
      EXPECT_EQ(all.end[i + few.tasks] - all.end[i], round.period);
      EXPECT_EQ(all.start[i + few.tasks] - all.start[i], round.period);
    }
    for (size_t i = 0; i < few.made.graph.size(); ++i) {
      EXPECT_TRUE(round.end[i] < 0 || round.end[i] == all.end[i]);
    }
    for (size_t m = 0; m < all.peaks.size(); ++m)
      EXPECT_EQ(round.peaks[m].bytes, all.peaks[m].bytes);
  }
  EXPECT_GT(came_round, 500);
  EXPECT_GT(stopped_early, 200);
}

}  // namespace
}  // namespace windlass
