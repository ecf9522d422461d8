// Every named strategy, lowered and simulated, is clean.

#include "windlass/plan/check.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/builder.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using testing::IsEmpty;

std::string joined(const std::vector<std::string>& findings) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(findings.size(), 6); ++i)
    text += "  " + findings[i] + "\n";
  return text;
}

// Prepares, lowers, simulates and checks. False if the strategy is not one for the model.
bool expect_clean(const Graph& graph, const std::string& strategy, const Machine& machine,
                  const TrainingOptions& options = {}) {
  SCOPED_TRACE(graph.name + " " + strategy + " on " + machine.name);
  PreparedStep step;
  TaskGraph tasks;
  try {
    step = prepare_step(graph, parse_baseline(strategy), machine, options);
    tasks = lower(step.training, step.strategy, machine);
  } catch (const Error& error) {
    // Packs are not for networks that mix samples, and not for several nodes.
    EXPECT_TRUE(error.kind() == ErrorKind::Input ||
                (step.strategy.packs && error.kind() == ErrorKind::Unsupported))
        << error.message();
    return false;
  }
  const auto findings = check_tasks(step.training, machine, step.strategy, tasks);
  EXPECT_TRUE(findings.empty()) << joined(findings);
  const auto cost = analytic_cost_model();
  const TaskTimes times = price_tasks(tasks, machine, *cost);
  const SimResult result = Simulator().run(tasks, times);
  EXPECT_EQ(result.status, SimStatus::Done);
  const auto run = check_run(tasks, times, result);
  EXPECT_TRUE(run.empty()) << joined(run);
  const Prediction prediction = predict(machine, tasks, result, "given");
  EXPECT_THAT(check_prediction(prediction, machine, tasks, result), IsEmpty());
  return true;
}

// The named strategies with parameters that make a difference.
const std::vector<std::string> kStrategies = {
    "single",
    "data-parallel",
    "data-parallel:micro-batches=2",
    "data-parallel:bucket=4KiB",
    "zero:stage=1",
    "zero:stage=2",
    "zero:stage=3",
    "zero:stage=1,micro-batches=2",
    "zero:stage=2,micro-batches=2",
    "zero:stage=3,micro-batches=2",
    "megatron:tp=2",
    "megatron:tp=2,sequence-parallel=on",
    "megatron:tp=2,zero=1",
    "megatron:tp=2,zero=2,micro-batches=2",
    "megatron:tp=2,zero=3",
    "megatron:tp=4,recompute=full",
    "megatron:tp=2,pp=2,micro-batches=4",
    "megatron:pp=2,interleave=2,micro-batches=4",
    "megatron:tp=2,pp=2,zero=1,recompute=selective,micro-batches=2",
    "one-weird-trick",
    "gpipe:micro-batches=4",
    "1f1b:micro-batches=4",
    "1f1b:stages=2,micro-batches=4,zero=2",
    "recompute-all",
    "recompute-sqrt:micro-batches=2",
    "offload-all",
    "offload-all:micro-batches=2,zero=1",
    "data-parallel:host-update=on",
    "zero:stage=1,host-update=on",
    "zero:stage=2,host-update=on,micro-batches=2",
    "zero:stage=3,host-update=on",
    "data-parallel:host-weights=on",
    "data-parallel:host-weights=on,host-update=on",
    "lru",
    "harmony:mode=pp",
    "harmony:mode=pp,packs=4,micro-batches=4",
    "harmony:mode=dp,packs=3",
};

Graph network(const std::string& name) {
  if (name == "mlp") return cases::mlp();
  if (name == "cnn") return cases::cnn();
  if (name == "batch norm") return cases::cnn(16, true);
  return cases::transformer(8, 4, name == "tied");
}

class Check : public testing::TestWithParam<const char*> {};

TEST_P(Check, NamedStrategies) {
  int made = 0;
  for (int devices : {1, 2, 4, 8})
    for (const std::string& strategy : kStrategies)
      made += expect_clean(network(GetParam()), strategy, cases::machine(devices));
  EXPECT_GE(made, 30);
}

TEST_P(Check, DevicesThatCopyThemselves) {
  for (int devices : {1, 4}) {
    Machine machine = cases::machine(devices);
    machine.device_types[0].copies_itself = true;
    for (const std::string& strategy : kStrategies)
      expect_clean(network(GetParam()), strategy, machine);
  }
}

TEST_P(Check, SeveralNodes) {
  for (const char* strategy :
       {"data-parallel", "zero:stage=3", "megatron:tp=2,pp=2,micro-batches=4", "offload-all",
        "1f1b:micro-batches=4"})
    expect_clean(network(GetParam()), strategy, cases::machine(2, 2));
}

INSTANTIATE_TEST_SUITE_P(Networks, Check,
                         testing::Values("mlp", "cnn", "batch norm", "transformer", "tied"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(CheckMore, SixteenBitWeights) {
  const Graph graph = with_dtype(cases::transformer(8, 2, false), DType::BF16);
  for (const char* strategy :
       {"data-parallel", "zero:stage=1", "zero:stage=3", "data-parallel:host-update=on",
        "megatron:tp=2,pp=2,micro-batches=2"})
    for (OptimizerKind optimizer : {OptimizerKind::Sgd, OptimizerKind::AdamW})
      expect_clean(graph, strategy, cases::machine(4),
                   {.optimizer = optimizer, .gradient_dtype = DType::F32});
}

TEST(CheckMore, PredictionThatIsWrong) {
  const Machine machine = cases::machine(2);
  const PreparedStep step =
      prepare_step(cases::mlp(), parse_baseline("data-parallel"), machine, {});
  const TaskGraph tasks = lower(step.training, step.strategy, machine);
  const auto cost = analytic_cost_model();
  const TaskTimes times = price_tasks(tasks, machine, *cost);
  SimResult result = Simulator().run(tasks, times);
  Prediction prediction = predict(machine, tasks, result, "given");
  prediction.device_peaks[1] += 1;
  prediction.step_time = Seconds(1);
  EXPECT_THAT(check_prediction(prediction, machine, tasks, result),
              testing::ElementsAre(testing::HasSubstr("promises a step of 1 s"),
                                   testing::HasSubstr("gpu1: the plan promises a peak")));
  result.peaks[0].bytes += 512;
  EXPECT_THAT(check_run(tasks, times, result), testing::Not(IsEmpty()));
}

// Decisions that nobody would make: every op split at random, every tensor treated at random.
TEST(CheckMore, RandomStrategies) {
  const unsigned strategies = sampled(400u);
  unsigned lowered = 0;
  for (uint64_t seed = 0; seed < strategies; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Graph graph = seed % 3 == 0   ? cases::mlp(16, 3)
                        : seed % 3 == 1 ? cases::cnn(16)
                                        : cases::transformer(8, 2, false);
    Machine machine = cases::machine(1 << rng.integer(0, 3));
    machine.device_types[0].copies_itself = seed % 2 == 1;
    const TrainingGraph training = differentiate(graph);
    const Strategy strategy = cases::random_strategy(training, machine, rng, {.in_turn = true});
    const TaskGraph tasks = lower(training, strategy, machine);
    ++lowered;
    const auto findings = check_tasks(training, machine, strategy, tasks);
    EXPECT_TRUE(findings.empty()) << joined(findings);
  }
  EXPECT_EQ(lowered, strategies);
}

// loss = m + m and m + m m for the mean m: the gradient of the loss, which no task makes, is a term
// of a sum.
TEST(CheckTasks, TheGradientOfTheLossIsATerm) {
  for (const bool squared : {false, true}) {
    GraphBuilder g("again");
    const TensorId x = g.input("x", {DType::F32, {8, 3}});
    const TensorId w = g.weight("w", {DType::F32, {3}});
    const TensorId y = g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, w}, "y");
    const TensorId m =
        g.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {0, 1}, false}, {y}, "mean");
    const TensorId other =
        squared ? g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {m, m}, "square") : m;
    g.set_loss(g.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {m, other}, "loss"));
    const Graph graph = g.finish();
    EXPECT_TRUE(expect_clean(graph, "single", cases::machine(1)));
    EXPECT_TRUE(expect_clean(graph, "data-parallel", cases::machine(4)));
  }
}

// The products of `head` are partial sums; the loss wants them whole in other parts, and again in
// the backward pass. They must be combined once.
TEST(CheckTasks, PartialSumsAreCombinedOnce) {
  const Machine machine = cases::machine(4);
  const TrainingGraph training = differentiate(cases::mlp(16, 1));
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.groups = {
      {DeviceId(size_t{0}), DeviceId(size_t{1}), DeviceId(size_t{2}), DeviceId(size_t{3})}};
  strategy.shardings = {{{{0, 4}}}};
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
    const std::string& name = training.graph.ops[i].name;
    if (name != "head" && name != "loss") continue;
    strategy.ops[i] = static_cast<int32_t>(strategy.shardings.size());
    strategy.shardings.push_back(sharding_from_text(name == "head" ? "k/2 n/2" : "d1/4", nest));
  }
  for (size_t s = 0; s < training.saved.size(); ++s)
    if (training.saved[s].producer.valid()) strategy.saved[s] = MemoryAction::Regather;
  const auto findings =
      check_tasks(training, machine, strategy, lower(training, strategy, machine));
  EXPECT_TRUE(findings.empty()) << joined(findings);
}

// Weights that are read through views, on one group or by several stages.
TEST(CheckTasks, NetworksOfViews) {
  int made = 0;
  for (int devices : {1, 2, 4})
    for (const char* strategy :
         {"single", "data-parallel", "zero:stage=1", "zero:stage=2,micro-batches=2", "zero:stage=3",
          "megatron:tp=2", "megatron:tp=2,sequence-parallel=on", "recompute-all", "offload-all",
          "data-parallel:host-weights=on,host-update=on", "gpipe:micro-batches=2",
          "1f1b:micro-batches=2", "1f1b:stages=2,micro-batches=2,zero=2",
          "harmony:mode=pp,packs=2,micro-batches=2", "harmony:mode=dp,packs=2"})
      made += expect_clean(cases::views(16), strategy, cases::machine(devices));
  EXPECT_GE(made, 35);
}

// y + reshape(reshape(y)): a gradient and a view of it are the terms of one sum.
TEST(CheckTasks, TermsThatAreViewsOfOneBuffer) {
  cases::Net net("twice");
  const TensorId x = net.b.input("x", cases::f32({8, 16, 32}));
  const TensorId y = net.norm(net.linear(x, 32, "first"), "norm");
  const TensorId flat = net.reshape(y, {8 * 16, 32}, "flat");
  const TensorId z = net.add(y, net.reshape(flat, {8, 16, 32}, "back"), "sum");
  const Graph graph = net.finish(net.linear(z, 16, "head"));
  int made = 0;
  for (int devices : {1, 2, 4})
    for (const char* strategy :
         {"single", "data-parallel", "megatron:tp=2", "megatron:tp=2,sequence-parallel=on",
          "megatron:tp=4,sequence-parallel=on", "gpipe:micro-batches=2", "recompute-all",
          "offload-all"})
      made += expect_clean(graph, strategy, cases::machine(devices));
  EXPECT_GE(made, 15);
}

// A weight that is read through a view is updated like any other.
TEST(CheckTasks, WeightsBehindViews) {
  cases::Net net("view");
  const TensorId x = net.b.input("x", cases::f32({8, 32}));
  const TensorId w = net.reshape(net.b.weight("flat", cases::f32({16 * 32})), {16, 32}, "matrix");
  const Graph graph = net.finish(net.b.op(OpKind::Linear, LinearAttrs{}, {x, w}, "linear"));
  for (const char* strategy :
       {"single", "data-parallel", "data-parallel:micro-batches=2", "zero:stage=1", "zero:stage=2"})
    expect_clean(graph, strategy, cases::machine(2));
}

}  // namespace
}  // namespace windlass
