// What a task graph says, carried out by the slow executor, is a plain training step.

#include "windlass/task/reference/run_tasks.h"

#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/check.h"
#include "windlass/plan/paged_step.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

void expect_same_step(const TrainingGraph& training, const Machine& machine,
                      const Strategy& strategy, const StepStart& start, const StepEnd& expected) {
  expect_same_end(
      training,
      [&] {
        check_strategy(training, machine, strategy);
        const TaskGraph tasks = lower(training, strategy, machine);
        EXPECT_THAT(check_tasks(training, machine, strategy, tasks), testing::IsEmpty());
        return run_tasks(training, machine, tasks, start);
      },
      expected);
}

void expect_same_step(const TrainingGraph& training, const Machine& machine,
                      const Strategy& strategy, uint64_t seed) {
  const StepStart start =
      cases::random_start(training, static_cast<int32_t>(strategy.micro_batches), seed);
  expect_same_step(training, machine, strategy, start, run_plainly(training, start));
}

// The same labels and inputs as of one batch, whose loss is the mean over all labels that count.
TEST(RunTasks, MicroBatchesAreTheBatch) {
  for (const Graph& graph : {cases::mlp(6, 2, 8), cases::transformer(6, 1)}) {
    SCOPED_TRACE(graph.name);
    const TrainingGraph whole = differentiate(graph);
    const TrainingGraph part = cut_training(graph, 3, {}).training;
    StepStart start = cases::random_start(part, 3, 1);
    const StepEnd cut = run_plainly(part, start);
    const auto data = start.data;
    start.micro_batches = 1;
    start.data = [&](TensorId id, int32_t) {
      Array all(whole.graph[id].type.shape);
      all.values.clear();
      for (int32_t m = 0; m < 3; ++m)
        std::ranges::copy(data(id, m).values, std::back_inserter(all.values));
      return all;
    };
    start.values.resize(whole.graph.tensors.size());
    const StepEnd expected = run_plainly(whole, start);
    double loss = 0;
    for (double term : cut.losses) loss += term / 3;
    EXPECT_NEAR(loss, expected.losses[0], 1e-12);
    ASSERT_EQ(cut.gradients.size(), expected.gradients.size());
    for (size_t u = 0; u < cut.gradients.size(); ++u)
      expect_near(cut.gradients[u], expected.gradients[u], "gradient");
  }
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

// Two groups of two devices, a stage each, everything copied.
Strategy two_stages(const TrainingGraph& training, size_t cut) {
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.groups = {{DeviceId(size_t{0}), DeviceId(size_t{1})},
                     {DeviceId(size_t{2}), DeviceId(size_t{3})}};
  strategy.stages = {{0, cut, 0}, {cut, training.forward_ops, 1}};
  strategy.schedule = ScheduleKind::GPipe;
  strategy.micro_batches = 2;
  strategy.shardings = {{{{-1, 2}}}};
  return strategy;
}

// The same for all devices as one group.
Strategy one_group(const TrainingGraph& training, const Machine& machine,
                   const Sharding& sharding) {
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.groups = {{}};
  for (size_t d = 0; d < machine.devices.size(); ++d) strategy.groups[0].emplace_back(d);
  strategy.shardings = {sharding};
  return strategy;
}

// One host with devices of two types.
Machine unlike_devices() {
  return machine_from_json(R"({"name": "unlike", "device_types": {
      "card": {"memory": "8GiB", "peak": {"fp32": "10TFLOPS"}, "memory_bandwidth": "500GB/s"},
      "slow": {"memory": "4GiB", "peak": {"fp32": "4TFLOPS"}, "memory_bandwidth": "200GB/s"}},
      "nodes": [{"host": {"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"},
                 "devices": [{"type": "card", "count": 2}, {"type": "slow", "count": 2}],
                 "switches": ["root"],
                 "links": [{"from": "gpu*", "to": "root", "bandwidth": "12GB/s"},
                           {"from": "root", "to": "host", "bandwidth": "20GB/s"}]}]})",
                           "test");
}

// The batch loop of a linear layer is its first one.
const Sharding kByBatch = {{{0, 4}}};

// A weight that two groups use is gathered, or copied from the host, where it is at home.
TEST(RunTasks, StreamedWeightsOfTwoGroups) {
  const Machine machine = cases::machine(4);
  const TrainingGraph training = differentiate(cases::transformer(2, 1, true));
  Strategy strategy = two_stages(training, 10);
  for (const Residency& residency :
       {Residency{.zero = 3}, Residency{.host = true}, Residency{.host = true, .host_update = true},
        Residency{.zero = 3, .host = true}}) {
    for (Residency& weight : strategy.weights) weight = residency;
    SCOPED_TRACE(fmt::format("ZeRO {}, host {}", residency.zero, residency.host));
    expect_same_step(training, machine, strategy, 1);
    // Replicas that share the embedding out.
    strategy.shardings.push_back({{{0, 2}}});
    strategy.ops[0] = 1;
    expect_same_step(training, machine, strategy, 2);
    strategy.shardings.pop_back();
    strategy.ops[0] = 0;
  }
}

// A group with two stages adds up terms of several micro-batches at a time.
TEST(RunTasks, MicroBatchesByTurns) {
  const Machine machine = cases::machine(2);
  const TrainingGraph training = differentiate(cases::transformer(2, 1, true));
  Strategy strategy = two_stages(training, 10);
  strategy.groups.pop_back();
  strategy.stages[1].group = 0;
  strategy.bucket = Bytes(1);
  strategy.micro_batches = 3;
  // Replicas of the first and of the last op, which both use the embedding.
  strategy.shardings.push_back({{{0, 2}}});
  strategy.ops[0] = strategy.ops[training.forward_ops - 2] = 1;
  for (uint8_t zero : {uint8_t{2}, uint8_t{3}}) {
    for (Residency& weight : strategy.weights) weight.zero = zero;
    expect_same_step(training, machine, strategy, 1);
  }
}

// Copies in another group are renewed after all teams of the home group have the new weight, and
// whatever the way from layout to layout.
TEST(RunTasks, CopiesOfOtherGroups) {
  const Machine machine = unlike_devices();
  const TrainingGraph training = differentiate(cases::transformer(2, 1, true));
  Strategy strategy = two_stages(training, 10);
  strategy.groups = {{DeviceId(size_t{0}), DeviceId(size_t{2})},
                     {DeviceId(size_t{1}), DeviceId(size_t{3})}};
  strategy.weights[0].host_update = true;
  expect_same_step(training, machine, strategy, 1);
  strategy.weights[0].host_update = false;
  // Rows of the embedding in two runs.
  const LoopNest nest = loops_of(training.graph, training.graph.ops[0]);
  ASSERT_EQ(nest.loops.back().name, "row");
  strategy.shardings.push_back({{{static_cast<int32_t>(nest.loops.size()) - 1, 2, 2}}});
  strategy.ops[0] = 1;
  expect_same_step(training, machine, strategy, 2);
}

// Groups of one device beside larger ones: an op that is not split, listed after one that is.
TEST(RunTasks, UnsplitOpsAmongOthers) {
  const Machine machine = cases::machine(3);
  const TrainingGraph training = differentiate(cases::mlp(4, 2, 8));
  Strategy strategy = two_stages(training, 3);
  strategy.groups[1].pop_back();
  strategy.shardings.emplace_back();
  for (size_t i = 3; i < training.forward_ops; ++i) strategy.ops[i] = 1;
  expect_same_step(training, machine, strategy, 1);
}

// Teams on one host have what is theirs there, and wait for their own copies.
TEST(RunTasks, TeamsOnOneHost) {
  const Machine machine = unlike_devices();
  const TrainingGraph training = differentiate(cases::mlp(8, 2, 8));
  Strategy strategy = one_group(training, machine, kByBatch);
  strategy.micro_batches = 2;
  for (uint8_t zero = 0; zero <= 3; ++zero)
    for (bool host : {false, true})
      for (bool host_update : {false, true}) {
        for (Residency& weight : strategy.weights) weight = {zero, host, host_update};
        SCOPED_TRACE(fmt::format("ZeRO {}, host {}, host update {}", zero, host, host_update));
        expect_same_step(training, machine, strategy, 1);
      }
}

// Samples as 3 to 3 to 1 to 1: fast and slow devices have room for their own samples alone, and
// come to the gradients of the whole batch. On devices that are alike, members of different sizes
// are different teams.
TEST(RunTasks, UnequalReplicas) {
  const TrainingGraph training = differentiate(cases::mlp(16, 2, 8));
  const TrainingGraph larger = differentiate(cases::mlp(64, 2, 8));
  const Sharding by_speed = {{{0, 4, 1, {3, 3, 1, 1}}}};
  for (const Machine& machine : {unlike_devices(), cases::machine(4), cases::machine(2, 2)}) {
    Strategy strategy = one_group(training, machine, by_speed);
    strategy.micro_batches = 2;
    for (uint8_t zero = 0; zero <= 3; ++zero)
      for (bool host : {false, true})
        for (bool host_update : {false, true}) {
          for (Residency& weight : strategy.weights) weight = {zero, host, host_update};
          SCOPED_TRACE(fmt::format("{}, ZeRO {}, host {}, host update {}", machine.name, zero, host,
                                   host_update));
          expect_same_step(training, machine, strategy, 1);
        }
    for (Residency& weight : strategy.weights) weight = {};
    const TaskGraph tasks = lower(larger, strategy, machine);
    ASSERT_EQ(tasks.teams.size(), 2u);
    const TensorId input = larger.graph.ops[0].inputs[0];
    const int64_t sample = byte_size(larger.graph[input].type).value / 64;  // 128 bytes
    std::vector<int64_t> bytes;
    for (const Buffer& buffer : tasks.buffers)
      if (buffer.tensor == input && buffer.micro_batch == 0) bytes.push_back(buffer.bytes.value);
    EXPECT_EQ(bytes, (std::vector<int64_t>{24 * sample, 8 * sample}));
  }
}

// What a host has is of a team: a copy of what belongs to another one is none.
TEST(RunTasks, WeightsOfAnotherTeam) {
  const Machine machine = unlike_devices();
  const TrainingGraph training = differentiate(cases::mlp(8, 1, 8));
  Strategy strategy = one_group(training, machine, kByBatch);
  for (Residency& weight : strategy.weights) weight.host = true;
  TaskGraph tasks = lower(training, strategy, machine);
  ASSERT_EQ(tasks.teams.size(), 2u);
  for (Buffer& buffer : tasks.buffers)
    if (buffer.team.valid()) buffer.team = TeamId(1 - buffer.team.index());
  EXPECT_THAT(check_tasks(training, machine, strategy, tasks), testing::Not(testing::IsEmpty()));
}

// Two nodes of two: of a weight that is cut over the inner digit each host holds both halves, over
// the outer digit one.
TEST(RunTasks, PartsOnAHost) {
  const Machine machine = cases::machine(2, 2);
  const TrainingGraph training = differentiate(cases::mlp(8, 1, 8));
  const size_t first = training.forward_ops + training.backward_ops;
  const TensorId weight = training.graph.ops[first].inputs[0];
  const int64_t whole = byte_size(training.graph[weight].type).value;
  for (const bool inner : {true, false}) {
    const Split copies = {-1, 2}, columns = {1, 2};
    Strategy strategy = one_group(training, machine, {{}});
    strategy.shardings = {{{{-1, 4}}},
                          inner ? Sharding{{copies, columns}} : Sharding{{columns, copies}}};
    strategy.ops[0] = 1;
    strategy.weights[0].host = true;
    const TaskGraph tasks = lower(training, strategy, machine);
    int64_t bytes = 0;
    for (const Buffer& buffer : tasks.buffers)
      if (buffer.team.valid() && buffer.kind == BufferKind::Weight) bytes += buffer.bytes.value;
    EXPECT_EQ(bytes, inner ? whole : whole / 2);
    expect_same_step(training, machine, strategy, 1);
  }
}

// Hosts with unlike memories hold what is theirs, each in its own.
TEST(RunTasks, UnlikeHosts) {
  const auto node = [](int memory) {
    return fmt::format(R"({{"host": {{"memory": "{}GiB", "memory_bandwidth": "50GB/s",
        "peak": "1TFLOPS"}}, "devices": [{{"type": "card", "count": 2}}], "switches": ["root"],
        "links": [{{"from": "gpu*", "to": "root", "bandwidth": "12GB/s"}},
                  {{"from": "root", "to": "host", "bandwidth": "20GB/s"}}]}})",
                       memory);
  };
  const Machine machine = machine_from_json(
      fmt::format(R"({{"name": "unlike", "device_types": {{"card": {{"memory": "8GiB",
          "peak": {{"fp32": "10TFLOPS"}}, "memory_bandwidth": "500GB/s"}}}},
          "nodes": [{}, {}], "network": {{"bandwidth": "10GB/s"}}}})",
                  node(64), node(32)),
      "test");
  const TrainingGraph training = differentiate(cases::mlp(8, 2, 8));
  Strategy strategy = one_group(training, machine, kByBatch);
  for (Residency& weight : strategy.weights) weight = {.zero = 1, .host = true};
  for (MemoryAction& action : strategy.saved) action = MemoryAction::Offload;
  expect_same_step(training, machine, strategy, 1);
}

// An op that reads a weight twice makes two terms of its gradient.
TEST(RunTasks, AWeightTimesItself) {
  const TrainingGraph training = differentiate(cases::repeated(4));
  for (int devices : {1, 2})
    expect_same_step(training, cases::machine(devices),
                     one_group(training, cases::machine(devices), {{{-1, devices}}}), 1);
}

// Where experts are split, each piece has a share of its input's gradient.
TEST(RunTasks, SplitExperts) {
  const Machine machine = cases::machine(3);
  const TrainingGraph training = differentiate(cases::mixture(4));
  Strategy strategy = one_group(training, machine, {{{-1, 3}}});
  for (size_t i = 0; i < training.forward_ops; ++i) {
    if (training.graph.ops[i].kind != OpKind::GroupedLinear) continue;
    const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
    ASSERT_EQ(nest.loops[3].name, "expert");
    strategy.shardings.push_back({{{3, 3}}});
    strategy.ops[i] = static_cast<int32_t>(strategy.shardings.size()) - 1;
  }
  ASSERT_EQ(strategy.shardings.size(), 3u);
  expect_same_step(training, machine, strategy, 1);
}

// Inside of every expert, as inside of any layer: the layer before is cut by its outputs, so the
// first experts are cut by their inputs.
TEST(RunTasks, TensorParallelExperts) {
  const Machine machine = cases::machine(2);
  const Graph graph = cases::mixture(4);
  const TrainingGraph training = differentiate(graph);
  BaselineSpec spec = parse_baseline("megatron:tp=2");
  resolve(spec, machine, 4);
  const Strategy strategy = make_baseline(spec, training, find_batch(graph), machine);
  std::vector<std::string> cut;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    if (training.graph.ops[i].kind != OpKind::GroupedLinear) continue;
    const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
    for (const Split& split : strategy.shardings[static_cast<size_t>(strategy.ops[i])].splits)
      if (split.loop >= 0) cut.push_back(nest.loops[static_cast<size_t>(split.loop)].name);
  }
  EXPECT_EQ(cut, std::vector<std::string>{"k"});
  expect_same_step(training, machine, strategy, 1);
}

// Every element of every gradient counts once in the norm, wherever it lies and whoever updates.
TEST(RunTasks, Clipping) {
  const Graph graph = cases::transformer(4, 1, true);
  const TrainingGraph plain = differentiate(graph);
  const TrainingGraph clipped = differentiate(graph, {.clip_norm = 0.01});
  const StepEnd as_is = run_plainly(plain, cases::random_start(plain, 2, 1));
  const StepStart start = cases::random_start(clipped, 2, 1);
  const StepEnd scaled = run_plainly(clipped, start);
  double squares = 0;
  for (const Array& gradient : as_is.gradients)
    for (double value : gradient.values) squares += value * value;
  const double norm = std::sqrt(squares);
  ASSERT_GT(norm, 0.1);
  // The first moment m of Adam becomes 0.9 m and a tenth of the gradient, which is scaled.
  const Op& update = clipped.graph.ops[clipped.forward_ops + clipped.backward_ops];
  const double before = start.values[update.inputs[3].index()].values[0];
  EXPECT_NEAR(scaled.states[0][0].values[0],
              0.9 * before + 0.1 * as_is.gradients[0].values[0] * 0.01 / (norm + 1e-6), 1e-15);

  for (const Machine& machine : {cases::machine(4), cases::machine(2, 2), unlike_devices()})
    for (uint8_t zero = 0; zero <= 3; ++zero)
      for (const bool host : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, ZeRO {}, host {}", machine.name, zero, host));
        Strategy strategy = two_stages(clipped, 10);
        // Halves of the weights are updated on the host; some ops have their own part of the batch.
        strategy.shardings.push_back({{{0, 2}}});
        for (size_t i = 0; i < strategy.ops.size(); i += 3)
          if (clipped.graph.ops[i].kind == OpKind::Linear) strategy.ops[i] = 1;
        for (size_t u = 0; u < strategy.weights.size(); ++u)
          strategy.weights[u] = {zero, host && u % 3 == 0, u % 2 == 0};
        expect_same_step(clipped, machine, strategy, 1);
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
    cases::RandomStep step = cases::random_step(seed);
    SCOPED_TRACE(step.name);
    step.begin(seed);
    expect_same_step(step.training, step.machine, step.strategy, step.start, step.expected());
    ++run;
    if (testing::Test::HasFailure() && many == nullptr) break;
  }
  EXPECT_GT(run, count / 8);
}

// Whatever pages go out and come in again in between.
TEST(RunTasks, PagesOnDemand) {
  size_t swaps = 0;
  const uint64_t count = sampled<uint64_t>(120);
  for (uint64_t seed = 1; seed <= count && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    SCOPED_TRACE(step.name);
    step.begin(seed);
    const Machine machine = cases::paged_machine(step.training, step.strategy, step.machine,
                                                 seed % 3 == 0   ? 1
                                                 : seed % 3 == 1 ? 1.5
                                                                 : 4);
    step.strategy.virtual_memory = true;
    expect_same_end(
        step.training,
        [&] {
          const TaskGraph tasks = lower(step.training, step.strategy, machine);
          EXPECT_THAT(check_tasks(step.training, machine, step.strategy, tasks),
                      testing::IsEmpty());
          for (const Task& task : tasks.tasks) swaps += task.kind == TaskKind::SwapIn ? 1 : 0;
          return run_tasks(step.training, machine, tasks, step.start);
        },
        step.expected());
  }
  EXPECT_GT(swaps, 10 * count);
}

}  // namespace
}  // namespace windlass
