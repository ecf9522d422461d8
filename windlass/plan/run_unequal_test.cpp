// Micro-batches whose number does not divide the batch: the step is that of the batch.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/plan/step.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

void expect_step_of_batch(const Graph& network, const std::string& strategy, int devices) {
  SCOPED_TRACE(fmt::format("{}, {} on {}", network.name, strategy, devices));
  const Machine machine = cases::machine(devices);
  const TrainingOptions options = {.optimizer = OptimizerKind::Adam};
  const PreparedStep step = prepare_step(network, parse_baseline(strategy), machine, options);
  ASSERT_NE(step.training.unequal, nullptr);
  const TrainingGraph whole = differentiate(network, options);
  const StepStart start =
      cases::random_start(step.training, static_cast<int32_t>(step.strategy.micro_batches), 1);
  const TaskGraph tasks = lower(step.training, step.strategy, machine);
  EXPECT_THAT(check_tasks(step.training, machine, step.strategy, tasks), testing::IsEmpty());
  expect_same_end(
      step.training, [&] { return run_tasks(step.training, machine, tasks, start); },
      run_plainly(whole, cases::start_of_batch(whole, start)));
}

TEST(RunUnequal, NamedStrategiesAreTheBatch) {
  expect_step_of_batch(cases::mlp(10, 3, 8), "single:micro-batches=3", 1);
  expect_step_of_batch(cases::mlp(10, 3, 8), "data-parallel:micro-batches=3", 3);
  expect_step_of_batch(cases::mlp(11, 3, 8), "data-parallel:micro-batches=2,parts=3:1", 2);
  for (const char* stage : {"1", "2", "3"})
    expect_step_of_batch(cases::mlp(10, 3, 8), fmt::format("zero:stage={},micro-batches=4", stage),
                         2);
  expect_step_of_batch(cases::transformer(7, 2), "gpipe:stages=2,micro-batches=3", 2);
  expect_step_of_batch(cases::transformer(7, 2), "1f1b:stages=2,micro-batches=5", 2);
  expect_step_of_batch(cases::transformer(7, 4), "megatron:tp=1,pp=2,interleave=2,micro-batches=4",
                       2);
  expect_step_of_batch(cases::transformer(5, 1, false), "megatron:tp=2,pp=2,micro-batches=3", 4);
  expect_step_of_batch(cases::unfused_transformer(5), "recompute-all:micro-batches=2", 2);
  expect_step_of_batch(cases::cnn(3), "offload-all:micro-batches=2", 1);
  expect_step_of_batch(cases::noisy(5), "single:micro-batches=3,host-update=on", 1);
  expect_step_of_batch(cases::repeated(5), "data-parallel:micro-batches=2", 2);
  expect_step_of_batch(cases::repeated(5), "single:micro-batches=3", 1);
  expect_step_of_batch(cases::unet(3), "zero:stage=3,micro-batches=2,host-weights=on", 1);
}

// 13 samples of 128 numbers of 4 bytes in 2 micro-batches: 7 and 6 times 512 bytes.
TEST(RunUnequal, BuffersHaveTheSizesOfTheirMicroBatches) {
  const Machine machine = cases::machine(1);
  const PreparedStep step =
      prepare_step(cases::mlp(13, 1, 128), parse_baseline("single:micro-batches=2"), machine, {});
  const TaskGraph tasks = lower(step.training, step.strategy, machine);
  std::vector<int64_t> bytes;
  for (const Buffer& buffer : tasks.buffers)
    if (buffer.tensor.valid() && step.training.graph[buffer.tensor].name == "relu0")
      bytes.push_back(buffer.bytes.value);
  EXPECT_THAT(bytes, testing::ElementsAre(7 * 512, 6 * 512));
}

TEST(RunUnequal, TooFewSamplesForTheReplicasAreRefused) {
  // By hand: a strategy of a larger micro-batch that the smaller ones cannot have.
  const Machine machine = cases::machine(2);
  TrainingGraph training = cut_training(cases::mlp(3, 1, 8), 2, {}).training;
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.micro_batches = 2;
  strategy.groups = {{DeviceId(size_t{0}), DeviceId(size_t{1})}};
  strategy.shardings = {{{{0, 2}}}};
  EXPECT_THROW(check_strategy(training, machine, strategy), Error);
  EXPECT_THROW(lower(training, strategy, machine), Error);
  strategy.shardings = {{{{-1, 2}}}};
  EXPECT_NO_THROW(check_strategy(training, machine, strategy));
  EXPECT_NO_THROW(lower(training, strategy, machine));
  strategy.micro_batches = 3;
  EXPECT_THROW(check_strategy(training, machine, strategy), Error);
}

// What is of one size is no other's: constants that have samples, bytes, works.
TEST(RunUnequal, TheCheckerKnowsTheSizes) {
  const Machine machine = cases::machine(1);
  const PreparedStep step =
      prepare_step(cases::repeated(15), parse_baseline("single:micro-batches=2"), machine, {});
  const TaskGraph clean = lower(step.training, step.strategy, machine);
  const auto findings = [&](const TaskGraph& graph) {
    return check_tasks(step.training, machine, step.strategy, graph);
  };
  ASSERT_THAT(findings(clean), testing::IsEmpty());
  std::vector<BufferId> constants;
  for (size_t b = 0; b < clean.buffers.size(); ++b)
    if (step.training.graph[clean.buffers[b].tensor].name == "start") constants.emplace_back(b);
  ASSERT_EQ(constants.size(), 2u);
  for (size_t from : {0u, 1u}) {
    TaskGraph broken = clean;
    for (Use& use : broken.uses)
      if (use.buffer == constants[from]) use.buffer = constants[1 - from];
    EXPECT_THAT(findings(broken), testing::Contains(testing::HasSubstr("size of another")));
  }
  // A task of a smaller micro-batch that is priced as one of a larger one is no error: it takes
  // longer. The other way round work is missing.
  size_t missing = 0;
  for (size_t i = 0; i < clean.size(); ++i) {
    const Task& task = clean.tasks[i];
    if (!task.op.valid() || task.micro_batch != 0) continue;
    for (const Task& other : clean.tasks) {
      if (other.op != task.op || other.kind != task.kind || other.micro_batch != 1) continue;
      TaskGraph broken = clean;
      broken.tasks[i].price = other.price;
      double less = 0, more = 0;
      for (const Kernel& kernel : clean.works[static_cast<size_t>(other.price)].kernels)
        less += kernel.multiply_adds;
      for (const Kernel& kernel : clean.works[static_cast<size_t>(task.price)].kernels)
        more += kernel.multiply_adds;
      if (less == more) continue;
      ++missing;
      EXPECT_THAT(findings(broken), testing::Not(testing::IsEmpty()));
    }
  }
  EXPECT_GE(missing, 3u);
  // Bytes of the other size.
  for (size_t b = 0; b < clean.buffers.size(); ++b)
    for (const Buffer& other : clean.buffers) {
      if (other.tensor != clean.buffers[b].tensor || other.bytes == clean.buffers[b].bytes)
        continue;
      TaskGraph broken = clean;
      broken.buffers[b].bytes = other.bytes;
      EXPECT_THAT(findings(broken), testing::Not(testing::IsEmpty()));
    }
}

// Equal micro-batches have one size, and the loops that the op table finds.
TEST(RunUnequal, EqualOnesStayAsTheyAre) {
  const PreparedStep step = prepare_step(
      cases::mlp(12, 3, 8), parse_baseline("data-parallel:micro-batches=3"), cases::machine(2), {});
  EXPECT_EQ(step.training.unequal, nullptr);
  EXPECT_EQ(step.training.graph.loops, nullptr);
}

}  // namespace
}  // namespace windlass
