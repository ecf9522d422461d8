#include "windlass/search/grid/recut.h"

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/check.h"
#include "windlass/search/search.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

// Every other device of a machine becomes slower and smaller.
Machine mixed_machine(const char* name, double speed, double memory) {
  Machine machine = load_machine(name);
  DeviceType slow = machine.device_types[machine.devices[0].type];
  slow.name += " (slow)";
  for (auto& [precision, peak] : slow.peak) peak.value *= speed;
  slow.memory_bandwidth.value *= speed;
  slow.memory = Bytes(static_cast<int64_t>(static_cast<double>(slow.memory.value) * memory));
  for (size_t d = 1; d < machine.devices.size(); d += 2) {
    machine.devices[d].type = machine.device_types.size();
    machine.devices[d].limit = slow.memory - slow.reserved;
  }
  machine.device_types.push_back(slow);
  return machine;
}

struct RecutBench {
  RecutBench(const char* model, int64_t batch, Machine on, const char* strategy)
      : network(load_model(model, {.batch = batch}).graph),
        machine(std::move(on)),
        step(prepare_step(network, parse_baseline(strategy), machine, {})),
        evaluator(problem, step.training),
        cutter(problem, step.training, evaluator) {}

  Graph network;
  Machine machine;
  std::unique_ptr<CostModel> cost = analytic_cost_model();
  Problem problem = {.network = network, .machine = machine, .cost = *cost};
  PreparedStep step;
  Evaluator evaluator;
  StageCutter cutter;
};

TEST(Recut, SlowDevicesGetLess) {
  RecutBench bench("gpt2:layers=12", 16, mixed_machine("4x3090", 0.5, 1),
                   "1f1b:stages=4,micro-batches=16");
  const Strategy even = bench.step.strategy;
  const auto found = bench.cutter.recut(even, StageMemory::Free);
  ASSERT_TRUE(found);
  const Nanoseconds before = bench.evaluator.evaluate_unlimited(even).time;
  const Nanoseconds after = bench.evaluator.evaluate_unlimited(*found).time;
  EXPECT_LT(static_cast<double>(after), 0.8 * static_cast<double>(before));

  double fast = 0, slow = 0;
  for (const Stage& stage : found->stages) {
    const DeviceId device = found->groups[static_cast<size_t>(stage.group)][0];
    (bench.machine[device].type == 0 ? fast : slow) +=
        static_cast<double>(stage.last - stage.first);
  }
  EXPECT_GT(fast, 1.2 * slow);
}

// Early stages hold more micro-batches: with little memory they get fewer ops.
TEST(Recut, EarlyStagesHoldMore) {
  const char* const pipeline = "1f1b:stages=4,micro-batches=8";
  Machine machine = load_machine("4x3090");
  RecutBench plenty("gpt2:layers=16", 32, machine, pipeline);
  const int64_t peak = plenty.evaluator.evaluate_unlimited(plenty.step.strategy).peak;
  for (Device& device : machine.devices)
    device.limit = Bytes(static_cast<int64_t>(0.85 * static_cast<double>(peak)));
  RecutBench bench("gpt2:layers=16", 32, machine, pipeline);
  const Strategy even = bench.step.strategy;
  EXPECT_FALSE(bench.evaluator.evaluate(even).fits);
  const auto found = bench.cutter.recut(even, StageMemory::Keep);
  ASSERT_TRUE(found);
  EXPECT_LT(found->stages[0].last, even.stages[0].last);
  EXPECT_TRUE(bench.evaluator.evaluate(*found).fits);
}

TEST(Recut, WhatItReturnsIsChecked) {
  Rng rng(3);
  const char* const models[] = {"gpt2:layers=6", "vit:layers=6", "transformer-base:layers=3",
                                "bert:layers=5"};
  const char* const strategies[] = {"1f1b:stages=4,micro-batches=4",
                                    "megatron:pp=2,tp=2,micro-batches=4",
                                    "gpipe:stages=2,dp=2,micro-batches=2,zero=1"};
  int found = 0;
  for (const char* model : models)
    for (const char* strategy : strategies) {
      RecutBench bench(model, 16, mixed_machine("4x3090", rng.uniform(0.3, 1), rng.uniform(0.3, 1)),
                       strategy);
      const Strategy sorted = sort_devices(bench.machine, bench.step.strategy);
      for (const StageMemory memory : {StageMemory::Free, StageMemory::Keep, StageMemory::Least}) {
        const auto strategy_found = bench.cutter.recut(sorted, memory);
        if (!strategy_found) continue;
        ++found;
        EXPECT_NO_THROW(check_strategy(bench.step.training, bench.machine, *strategy_found));
        const SimulatedStep step =
            simulate_step(bench.step.training, *strategy_found, bench.machine, *bench.cost);
        EXPECT_EQ(check_tasks(bench.step.training, bench.machine, *strategy_found, step.tasks),
                  std::vector<std::string>{});
      }
    }
  EXPECT_GT(found, 20);
}

TEST(Recut, OnlyPipelinesOfOneStageAGroup) {
  RecutBench bench("gpt2:layers=4", 8, load_machine("4x3090"), "data-parallel");
  EXPECT_FALSE(bench.cutter.recut(bench.step.strategy, StageMemory::Free));
}

// The whole search, on a machine that even cuts suit badly.
TEST(Recut, PlansUseIt) {
  const Graph network = load_model("gpt2:layers=12", {.batch = 16}).graph;
  const Machine machine = mixed_machine("4x3090", 0.4, 0.5);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  SearchOptions options;
  options.fixed.pp = 4;
  const SearchResult found = search_grid(problem, options);
  ASSERT_NE(found.termination, Termination::Infeasible);
  const PreparedStep even =
      prepare_step(network, parse_baseline("1f1b:stages=4,micro-batches=16"), machine, {});
  Evaluator evaluator(problem, even.training);
  const Evaluation by_hand = evaluator.evaluate_unlimited(even.strategy);
  EXPECT_LT(found.step_time.value, 0.8 * static_cast<double>(by_hand.time) * 1e-9);
}

}  // namespace
}  // namespace windlass
