// Clocks of ranks that differ are read right, and the times of steps with them: nobody has received
// what was not sent yet, but for the error that is stated.

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/runtime/join_ranks.h"
#include "windlass/runtime/parcels.h"
#include "windlass/runtime/random_run.h"
#include "windlass/runtime/thread_ranks.h"

namespace windlass {
namespace {

using testing_runs::on_every_rank;
using testing_runs::RandomRun;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

// Threads have one clock, of which each rank shows another time: so the true difference is known.
TEST(RankClock, IsReadWithinItsError) {
  constexpr double kAhead = 1234.5;
  on_every_rank(
      4,
      [](Ranks& ranks) {
        const ClockReading found = read_clock(ranks);
        EXPECT_LE(std::abs(found.offset + kAhead * ranks.rank()), found.error + 1e-6);
        EXPECT_EQ(found.error == 0, ranks.rank() == 0);
        ranks.align_clock();
        // Whoever has heard of all of them is later than what they had said.
        const std::vector<std::string> told = ranks.tell_all(std::to_string(ranks.now()));
        const double after = ranks.now();
        for (const std::string& text : told)
          EXPECT_LE(std::stod(text), after + 2 * found.error + 1e-3);
      },
      kAhead);
}

// By task and device: when its part ran.
using TimesOf = std::map<std::pair<TaskId, DeviceId>, PartTime>;

// What a rank gets in a task was sent by a rank that had begun it.
void expect_order(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
                  const std::vector<int32_t>& axes, const StepRecord& record, int32_t ranks,
                  size_t& messages) {
  TimesOf times;
  for (const PartTime& part : record.parts) times[{part.task, part.device}] = part;
  // Every device has its part of every task that it has to do with.
  for (size_t t = 0; t < tasks.size(); ++t)
    for (DeviceId device : devices_of(tasks, TaskId(t)))
      EXPECT_TRUE(times.contains({TaskId(t), device})) << t << " " << machine[device].name;
  const Program program = make_program(training, machine, tasks, axes);
  const std::vector<int32_t> rank_of = device_ranks(machine, ranks);
  const auto devices_of_rank = [&](TaskId task, int32_t rank) {
    std::vector<DeviceId> found;
    for (DeviceId device : devices_of(tasks, task))
      if (rank_of[device.index()] == rank) found.push_back(device);
    return found;
  };
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const Ownership own = share_out(program, machine, rank, ranks);
    for (size_t t = 0; t < tasks.size(); ++t) {
      const ProgramTask& task = program.tasks[t];
      if (!moves(task.kind) || task.apart) continue;
      const TaskParcels parcels = make_parcels(program, own, TaskId(t), -1);
      for (const RankMessage& message : parcels.receives[0])
        for (DeviceId to : devices_of_rank(TaskId(t), rank))
          for (DeviceId from : devices_of_rank(TaskId(t), message.peer)) {
            ++messages;
            EXPECT_GE(times.at({TaskId(t), to}).end + record.clock_error,
                      times.at({TaskId(t), from}).start);
          }
    }
  }
}

TEST(RankClock, NothingIsReceivedBeforeItIsSent) {
  size_t messages = 0;
  const uint64_t count = sampled<uint64_t>(40);
  for (uint64_t seed = 1; seed <= count && !HasFailure(); ++seed) {
    const RandomRun random(seed);
    const cases::RandomStep& step = random.step;
    const int32_t ranks = random.devices();
    if (ranks == 1) continue;
    SCOPED_TRACE(step.name);
    on_every_rank(
        ranks,
        [&](Ranks& one) {
          one.align_clock();
          RunSettings settings;
          settings.ranks = &one;
          const RunEnd found = random.run(settings);
          EXPECT_GT(found.outcome.clock_error, 0);
          if (one.rank() == 0)
            expect_order(step.training, step.machine, random.simulated.tasks, random.batch.axis,
                         found.outcome, ranks, messages);
        },
        77.7);
  }
  EXPECT_GT(messages, 0u);
}

}  // namespace
}  // namespace windlass
