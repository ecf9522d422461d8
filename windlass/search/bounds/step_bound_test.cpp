// Bounds against plain evaluation.

#include "windlass/search/bounds/step_bound.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/mcmc/walks.h"

namespace windlass {
namespace {

Machine with_limit(Machine machine, int64_t limit) {
  for (Device& device : machine.devices) device.limit = Bytes(limit);
  return machine;
}

// Of two inputs, the second one's layers come late and need nothing of those before.
Graph late_input() {
  cases::Net net("late input");
  TensorId x = net.b.input("x", cases::f32({16, 64}));
  TensorId y = net.b.input("y", cases::f32({16, 64}));
  for (const char* name : {"a", "b", "c"}) x = net.relu(net.linear(x, 64, name), name);
  for (const char* name : {"d", "e", "f"}) y = net.norm(net.linear(y, 64, name), name);
  return net.finish(net.linear(net.add(x, y, "add"), 16, "head"));
}

std::vector<Graph> networks() {
  return {cases::mlp(16, 3, 64), cases::cnn(16, true), cases::transformer(8, 2, true),
          late_input()};
}

TEST(StepBound, IsNoMoreThanTheSimulatedStep) {
  const auto cost = analytic_cost_model();
  Rng rng(7);
  int tight = 0, all = 0, too_large = 0;
  for (const Machine& whole : {cases::machine(4), cases::machine(4, 2), cases::machine(6)})
    for (const Graph& network : networks()) {
      const TrainingGraph training = differentiate(network);
      for (int round = 0; round < sampled(60); ++round) {
        const Machine machine = with_limit(whole, 200'000 << rng.integer(0, 5));
        const Problem problem = {.network = network, .machine = machine, .cost = *cost};
        Evaluator evaluator(problem, training);
        StepBound bound(problem, training);
        const Strategy strategy = cases::random_strategy(training, machine, rng);
        Nanoseconds time = 0;
        try {
          time = evaluator.evaluate_unlimited(strategy).time;
        } catch (const Error&) {
          continue;
        }
        const Nanoseconds least = bound(strategy, INT64_MAX);
        EXPECT_LE(least, time);
        // Stopped early it is a bound as well.
        const Nanoseconds enough = time * 2 / 3;
        const Nanoseconds stopped = bound(strategy, enough);
        EXPECT_LE(stopped, time);
        if (least > enough) {
          EXPECT_GT(stopped, enough);
        }
        if (bound.too_large(strategy)) {
          ++too_large;
          EXPECT_FALSE(evaluator.evaluate(strategy).fits);
        }
        if (bound.never_fits(strategy)) {
          EXPECT_TRUE(bound.too_large(strategy));
        }
        ++all;
        tight += 2 * least >= time ? 1 : 0;
      }
    }
  EXPECT_GT(all, sampled(300));
  EXPECT_GT(tight, all / 10);
  EXPECT_GE(too_large, sampled(21));
}

// Where the bound says that it is exact, it is the simulated step to the nanosecond.
TEST(StepBound, IsExactForPlainSteps) {
  const auto cost = analytic_cost_model();
  Rng rng(9);
  int all = 0, exact = 0;
  for (const Machine& whole : {cases::machine(4), cases::machine(4, 2), cases::machine(8)})
    for (const Graph& network : networks()) {
      const TrainingGraph training = differentiate(network);
      for (int round = 0; round < sampled(150); ++round) {
        const Machine machine = with_limit(whole, 1'000'000 << rng.integer(0, 8));
        const Problem problem = {.network = network, .machine = machine, .cost = *cost};
        Evaluator evaluator(problem, training);
        StepBound bound(problem, training);
        Strategy strategy = cases::random_strategy(
            training, machine, rng,
            {.weights = false, .pipeline = false, .sharded = rng.uniform(), .compress = false});
        strategy.micro_batches = 1;
        strategy.bucket = Bytes(int64_t{1} << rng.integer(8, 20));
        std::ranges::fill(strategy.saved, MemoryAction::Keep);
        const double plain = rng.uniform();
        for (Residency& weight : strategy.weights)
          if (!rng.chance(plain))
            weight = {.zero = static_cast<uint8_t>(rng.integer(0, 3)),
                      .host = rng.chance(0.3),
                      .host_update = rng.chance(0.3)};
        const Evaluation inside = evaluator.evaluate(strategy);
        const Nanoseconds least = bound(strategy, INT64_MAX);
        ++all;
        if (!bound.exact()) continue;
        ++exact;
        EXPECT_TRUE(inside.fits);
        ASSERT_EQ(least, inside.time);
      }
    }
  EXPECT_GT(exact, all / 3);
}

// One that has walked other strategies before finds the same as one that has not.
TEST(StepBound, DoesNotDependOnWhatWasWalkedBefore) {
  const auto cost = analytic_cost_model();
  Rng rng(13);
  int exact = 0;
  const Machine machine = with_limit(cases::machine(4), 1 << 30);
  for (const Graph& network : networks()) {
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    const TrainingGraph training = differentiate(network);
    for (int round = 0; round < 6; ++round) {
      MoveMix mix;
      if (round % 2 == 0) mix.one_tensor = mix.tensors_alike = mix.exchange = 0;
      Moves moves(training, machine, mix);
      Strategy strategy =
          cases::random_strategy(training, machine, rng, {.pipeline = false, .compress = false});
      if (round % 2 == 0) {
        std::ranges::fill(strategy.saved, MemoryAction::Keep);
        strategy.micro_batches = 1;
      }
      moves.adopt(strategy);
      StepBound again(problem, training);
      Proposal proposal;
      for (int step = 0; step < sampled(150); ++step) {
        moves.propose(strategy, rng, proposal);
        StepBound fresh(problem, training);
        const Nanoseconds time = fresh(strategy, INT64_MAX);
        const bool fresh_exact = fresh.exact();
        EXPECT_EQ(again(strategy, INT64_MAX), time);
        EXPECT_EQ(again.exact(), fresh_exact);
        exact += fresh_exact ? 1 : 0;
        const Nanoseconds enough = time * rng.integer(1, 16) / 16;
        // Where they stop may differ, but not whether they do.
        const Nanoseconds one = again(strategy, enough), other = fresh(strategy, enough);
        EXPECT_TRUE(one == other || (one > enough && other > enough)) << one << " " << other;
        if (rng.chance(0.6)) take_back(strategy, proposal);
      }
    }
  }
  EXPECT_GT(exact, sampled(300));
}

// Networks of several windows: wherever the walk stops, it is a bound.
void expect_bounds(const char* machine_name, const char* model, const char* start, Rng& rng,
                   int& early) {
  const auto cost = analytic_cost_model();
  const Machine machine = load_machine(machine_name);
  const Graph network = load_model(model, {.batch = 64}).graph;
  const PreparedStep step =
      prepare_step(network, parse_baseline(start), machine, TrainingOptions());
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  Moves moves(step.training, machine,
              {.one_tensor = rng.chance(0.5) ? 0 : 0.2, .tensors_alike = 0, .exchange = 0});
  Evaluator evaluator(problem, step.training);
  StepBound bound(problem, step.training);
  Strategy strategy = step.strategy;
  moves.adopt(strategy);
  Proposal proposal;
  Nanoseconds kept = evaluator.evaluate_unlimited(strategy).time;
  for (int round = 0; round < sampled(300); ++round) {
    moves.propose(strategy, rng, proposal);
    const Nanoseconds time = evaluator.evaluate_unlimited(strategy).time;
    Nanoseconds enough = 0;
    for (int stop = 0; stop < 20; ++stop) {
      const Nanoseconds least = bound(strategy, enough);
      ASSERT_LE(least, time) << model << " on " << machine_name << " from " << start;
      if (least <= enough) break;
      ++early;
      enough = least;
    }
    // Near good strategies, as chains are, bounds have the least room.
    constexpr double kWorse = 1.005;
    if (static_cast<double>(time) > kWorse * static_cast<double>(kept) && rng.chance(0.95))
      take_back(strategy, proposal);
    else
      kept = time;
  }
}

TEST(StepBound, IsABoundWhereverItStops) {
  int early = 0;
  for (const char* machine_name : {"8x1080ti", "8xa100-80g"})
    for (const char* model :
         {"inception-v3", "gpt2:layers=4", "resnet-50", "transformer-base:layers=2"})
      for (const uint64_t seed : {17, 3}) {
        Rng rng(seed);
        expect_bounds(machine_name, model, "data-parallel", rng, early);
      }
  EXPECT_GT(early, sampled(4000));
}

TEST(StepBound, IsABoundOfPipelinesWhereverTheirBordersAre) {
  int early = 0;
  Rng rng(5);
  for (const char* model : {"gpt2:layers=4", "convnext-t", "transformer-base:layers=2"})
    for (const char* start : {"megatron:pp=2,tp=2,micro-batches=4", "1f1b:stages=4,micro-batches=8",
                              "megatron:pp=4,dp=2,micro-batches=4"})
      expect_bounds("8x1080ti", model, start, rng, early);
}

TEST(StepBound, IsTightForPlainSteps) {
  const auto cost = analytic_cost_model();
  const Machine machine = cases::machine(4);
  for (const Graph& network : networks()) {
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    SearchOptions options;
    Ledger ledger(problem, options);
    for (const char* name : {"data-parallel", "recompute-all", "megatron:tp=2"}) {
      const auto strategy = ledger.named(parse_baseline(name), 1);
      if (!strategy) continue;
      const Cut& cut = ledger.cut(1);
      const auto time = static_cast<double>(cut.evaluator->evaluate_unlimited(*strategy).time);
      StepBound bound(problem, cut.training);
      // Small gradients are reduced at the price of their latency, which the bound leaves out.
      EXPECT_GT(static_cast<double>(bound(*strategy, INT64_MAX)), 0.6 * time) << name;
    }
  }
}

// Of stages that are split over devices, what these exchange is part of it.
TEST(StepBound, IsTightForPipelines) {
  const auto cost = analytic_cost_model();
  const Machine machine = load_machine("4x3090");
  const Graph network =
      load_model("gpt2:layers=8,hidden=512,heads=8,vocab=1000", {.batch = 16, .sequence = 128})
          .graph;
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  SearchOptions options;
  Ledger ledger(problem, options);
  for (const auto& [name, micro] : {std::pair("megatron:pp=4", 16),
                                    {"megatron:pp=2,tp=2", 8},
                                    {"megatron:pp=2,dp=2", 4},
                                    {"megatron:pp=2,dp=2", 8}}) {
    const auto strategy = ledger.named(parse_baseline(name), micro);
    ASSERT_TRUE(strategy) << name;
    Evaluator& evaluator = *ledger.cut(micro).evaluator;
    const auto time = static_cast<double>(evaluator.evaluate_unlimited(*strategy).time);
    const auto least = static_cast<double>(evaluator.bound(*strategy));
    EXPECT_LE(least, time) << name;
    EXPECT_GT(least, 0.8 * time) << name << " " << micro;
  }
}

}  // namespace
}  // namespace windlass
