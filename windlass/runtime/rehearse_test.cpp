#include "windlass/runtime/rehearse.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/parcels.h"
#include "windlass/runtime/rank_meetings.h"

namespace windlass {
namespace {

SimulatedStep step_of(const cases::RandomStep& random) {
  return simulate_step(random.training, random.strategy, random.machine, *analytic_cost_model(),
                       {});
}

TEST(Rehearse, RandomStrategiesAreWalkedToTheirEnd) {
  int64_t messages = 0;
  for (uint64_t seed = 1; seed <= sampled<uint64_t>(200); ++seed) {
    const cases::RandomStep random = cases::random_step(seed);
    SCOPED_TRACE(random.name);
    for (size_t ranks : {random.machine.nodes.size(), random.machine.devices.size()}) {
      const RehearsalReport found = rehearse(random.training, step_of(random), random.machine, {},
                                             static_cast<int32_t>(ranks));
      EXPECT_TRUE(found.faults.empty()) << found.faults[0];
      EXPECT_GE(found.jobs, found.tasks);
      EXPECT_EQ(found.messages > 0, found.bytes > 0);
      messages += found.messages;
    }
  }
  EXPECT_GT(messages, 0);
}

// Memory that does not suffice for the order of the simulation, and a task that waits for one after
// it on another rank, are both noticed.
TEST(Rehearse, NoticesWhoWaitsForEver) {
  int64_t noticed = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const cases::RandomStep random = cases::random_step(seed);
    SimulatedStep step = step_of(random);
    const auto ranks = static_cast<int32_t>(random.machine.devices.size());
    if (ranks < 2) continue;
    // Whoever needs bytes beyond the peak is never let in.
    for (Buffer& buffer : step.tasks.buffers)
      if (!buffer.at_start && buffer.bytes.value > 0) {
        for (MemoryPeak& peak : step.result.peaks) peak.bytes = 1;
        break;
      }
    const RehearsalReport found = rehearse(random.training, step, random.machine, {}, ranks);
    for (const std::string& fault : found.faults)
      noticed += fault.find("waits for ever") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(noticed, 0);
}

// What is passed over because a task before it was alike, and processes that have the jobs of
// another, change nothing: the messages are those that every rank by itself makes of the program.
TEST(Rehearse, MessagesAreThoseOfEachRank) {
  for (uint64_t seed = 1; seed <= sampled<uint64_t>(60); ++seed) {
    const cases::RandomStep random = cases::random_step(seed);
    SCOPED_TRACE(random.name);
    const SimulatedStep step = step_of(random);
    const auto ranks = static_cast<int32_t>(random.machine.devices.size());
    const RehearsalReport found = rehearse(random.training, step, random.machine, {}, ranks);
    const Program program = make_program(random.training, random.machine, step.tasks, {});
    const MemoryOrder order = memory_order(step.tasks, step.times, step.result);
    int64_t jobs = 0, messages = 0, bytes = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Ownership own = share_out(program, random.machine, rank, ranks);
      jobs += static_cast<int64_t>(make_jobs(step.tasks, program, order, own).jobs.size());
      for (size_t t = 0; t < step.tasks.size(); ++t) {
        if (!moves(program.tasks[t].kind)) continue;
        const TaskParcels parcels =
            make_parcels(program, own, TaskId(t), program.tasks[t].apart ? 0 : -1);
        for (const auto& round : parcels.sends)
          for (const RankMessage& message : round) {
            ++messages;
            bytes += message.bytes;
          }
      }
    }
    EXPECT_EQ(found.jobs, jobs);
    EXPECT_EQ(found.messages, messages);
    EXPECT_EQ(found.bytes, bytes);
  }
}

// Four ranks with a slot each: those that all meet each other are a circle, others are not.
TEST(RankMeetings, CirclesAndPairs) {
  const Ownership own = {.rank = 0, .ranks = 4, .of_memory = {0, 1, 2, 3}, .of_slot = {0, 1, 2, 3}};
  MeetingFinder finder(4);
  ProgramTask sum = {.kind = TaskKind::Reduce, .apart = false};
  TermSum all = {.count = 10};
  for (int32_t slot = 0; slot < 4; ++slot) all.terms.push_back({.slot = slot});
  all.results = all.terms;
  sum.sums = {all};
  const RankMeeting circle = finder.find(TaskCrossings(sum, -1, own));
  // Each sends a part to each, and hands round what it has made.
  EXPECT_EQ(circle.messages, 2 * 4 * 3);
  EXPECT_EQ(circle.circle_of, (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_TRUE(circle.faults.empty());
  ProgramTask two = {.kind = TaskKind::Reduce, .apart = false};
  for (int32_t first : {0, 2}) {
    TermSum pair = {.terms = {{.slot = first}, {.slot = first + 1}}, .count = 3};
    pair.results = pair.terms;
    two.sums.push_back(pair);
  }
  const RankMeeting circles = finder.find(TaskCrossings(two, -1, own));
  EXPECT_EQ(circles.messages, 4);
  EXPECT_EQ(circles.circle_of, (std::vector<int32_t>{0, 0, 1, 1}));
  ProgramTask copies = {.kind = TaskKind::Gather, .apart = false};
  copies.copies = {{.from = 0, .to = 1, .bytes = 8}, {.from = 0, .to = 2, .bytes = 24}};
  const RankMeeting star = finder.find(TaskCrossings(copies, -1, own));
  EXPECT_EQ(star.messages, 2);
  EXPECT_EQ(star.bytes, 16 + 32);
  EXPECT_TRUE(star.circle_of.empty());
  EXPECT_EQ(star.peers, (std::vector<int32_t>{1, 2, 0, 0}));
  EXPECT_EQ(star.peers_begin, (std::vector<uint32_t>{0, 2, 3, 4, 4}));
}

TEST(Rehearse, RefusesOtherNumbersOfProcesses) {
  const cases::RandomStep random = cases::random_step(1);
  const auto too_many = static_cast<int32_t>(random.machine.devices.size() + 1);
  EXPECT_THROW(rehearse(random.training, step_of(random), random.machine, {}, too_many), Error);
}

}  // namespace
}  // namespace windlass
