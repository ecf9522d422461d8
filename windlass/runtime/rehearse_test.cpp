#include "windlass/runtime/rehearse.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"

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

TEST(Rehearse, RefusesOtherNumbersOfProcesses) {
  const cases::RandomStep random = cases::random_step(1);
  const auto too_many = static_cast<int32_t>(random.machine.devices.size() + 1);
  EXPECT_THROW(rehearse(random.training, step_of(random), random.machine, {}, too_many), Error);
}

}  // namespace
}  // namespace windlass
