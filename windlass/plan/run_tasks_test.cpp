// What a task graph says, carried out by the slow executor, is a plain training step.

#include "windlass/task/reference/run_tasks.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

void expect_same_step(const TrainingGraph& training, const Machine& machine,
                      const Strategy& strategy, uint64_t seed) {
  const StepStart start =
      cases::random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  const TaskGraph tasks = lower(training, strategy, machine);
  expect_same_end(training, [&] { return run_tasks(training, machine, tasks, start); },
                  run_plainly(training, start));
}

TEST(RunTasks, OneDevice) {
  const Machine machine = cases::machine(1);
  for (const Graph& graph :
       {cases::mlp(4, 2, 8), cases::cnn(2), cases::transformer(2, 1), cases::views(4)}) {
    const TrainingGraph training = differentiate(graph);
    SCOPED_TRACE(graph.name);
    expect_same_step(training, machine, plain_strategy(training, DeviceId(size_t{0})), 1);
  }
}

TEST(RunTasks, RandomStrategies) {
  const char* many = std::getenv("WINDLASS_RANDOM_STEPS");
  const char* first = std::getenv("WINDLASS_RANDOM_SEED");
  const uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  const uint64_t count =
      many == nullptr ? sampled<uint64_t>(160) : std::strtoull(many, nullptr, 10);
  uint64_t run = 0;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const cases::RandomStep step = cases::random_step(seed);
    SCOPED_TRACE(step.name);
    expect_same_step(step.training, step.machine, step.strategy, seed);
    ++run;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(run, count / 8);
}

}  // namespace
}  // namespace windlass
