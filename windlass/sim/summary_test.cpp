#include "windlass/sim/summary.h"

#include <numeric>

#include <gtest/gtest.h>

#include "windlass/sim/hand_made.h"
#include "windlass/sim/reference/random_tasks.h"

namespace windlass {
namespace {

SimResult simulated(const HandMade& made) { return Simulator().run(made.graph, made.times); }

TEST(Summary, IdleTimeBelongsToWhatWasWaitedFor) {
  HandMade made({LaneKind::Compute, LaneKind::Reduce, LaneKind::SwapIn, LaneKind::Host});
  const int32_t nothing = made.traffic(0, {});
  const TaskId copy = made.task(TaskKind::SwapIn, {2}, 10, {}, {}, nothing);           // 0-10
  const TaskId forward = made.compute(20, {copy});                                     // 10-30
  const TaskId reduce = made.task(TaskKind::Reduce, {1}, 15, {forward}, {}, nothing);  // 30-45
  made.task(TaskKind::Recompute, {0}, 5, {forward});                                   // 30-35
  const TaskId update = made.task(TaskKind::Update, {0}, 3, {reduce});                 // 45-48
  made.task(TaskKind::HostUpdate, {3}, 12, {update});                                  // 48-60
  const SimResult result = simulated(made);
  ASSERT_EQ(result.makespan, 60);
  Breakdown expected;
  expected.swap = 10;           // 0-10
  expected.compute = 20;        // 10-30
  expected.recompute = 5;       // 30-35
  expected.communication = 10;  // 35-45
  expected.update = 3 + 12;     // 45-48 and the host after that
  EXPECT_EQ(break_down(made.graph, result), std::vector{expected});
  EXPECT_EQ(expected.total(), 60);
}

TEST(Summary, WaitingForMemoryIsSwapIfASwapFreedIt) {
  for (const TaskKind kind : {TaskKind::SwapOut, TaskKind::Send}) {
    HandMade made({LaneKind::Compute, LaneKind::SwapOut});
    const int32_t nothing = made.traffic(0, {});
    const BufferId saved = made.buffer(80);
    const TaskId first = made.compute(10, {}, {saved});
    made.task(kind, {1}, 30, {first}, {saved}, nothing);
    made.compute(10, {first}, {made.buffer(50)});  // fits at 40
    const SimResult result = simulated(made);
    ASSERT_EQ(result.start[2], 40);
    Breakdown expected;
    expected.compute = 20;
    (kind == TaskKind::SwapOut ? expected.swap : expected.bubble) = 30;
    EXPECT_EQ(break_down(made.graph, result), std::vector{expected});
  }
}

TEST(Summary, PartsSumToTheMakespan) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const RandomTasks random = random_tasks(rng, 80);
    const SimResult result = Simulator().run(random.graph, random.times);
    for (const Breakdown& part : break_down(random.graph, result)) {
      EXPECT_EQ(part.total(), result.makespan) << seed;
      for (Nanoseconds time :
           {part.compute, part.recompute, part.update, part.communication, part.swap, part.bubble})
        EXPECT_GE(time, 0) << seed;
    }
  }
}

TEST(Summary, PeaksAreMadeOfWhatIsAlive) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed, 1);
    const RandomTasks random = random_tasks(rng, 80);
    const SimResult result = Simulator().run(random.graph, random.times);
    for (size_t i = 0; i < random.graph.memories.size(); ++i) {
      // If not even the start fits, nothing starts at the time of the peak.
      const PeakComposition peak = compose_peak(random.graph, random.times, result, MemoryId(i), 3);
      EXPECT_EQ(std::accumulate(peak.by_kind.begin(), peak.by_kind.end(), peak.workspace),
                result.peaks[i].bytes)
          << seed;
      EXPECT_LE(peak.largest.size(), 3u);
    }
  }
}

TEST(Summary, LinkBytesCountEveryTask) {
  HandMade made({LaneKind::SwapIn});
  const LinkDirection there{LinkId(0), true};
  const LinkDirection back{LinkId(0), false};
  const int32_t both = made.traffic(10, {});
  const int32_t one = made.traffic(10, {});
  made.graph.traffics[0].loads = {{back, Bytes(3)}, {there, Bytes(10)}};
  made.graph.traffics[1].loads = {{there, Bytes(7)}};
  made.task(TaskKind::SwapIn, {0}, 1, {}, {}, both);
  made.task(TaskKind::SwapIn, {0}, 1, {}, {}, both);
  made.task(TaskKind::SwapIn, {0}, 1, {}, {}, one);
  const std::vector<LinkLoad> loads = link_bytes(made.graph, simulated(made));
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].direction, back);
  EXPECT_EQ(loads[0].bytes, Bytes(6));
  EXPECT_EQ(loads[1].direction, there);
  EXPECT_EQ(loads[1].bytes, Bytes(27));
}

}  // namespace
}  // namespace windlass
