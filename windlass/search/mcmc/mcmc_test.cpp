// Bounds, moves and chains against plain evaluation.

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/bounds/step_bound.h"
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

// Every strategy is simulated: what StepJudge has to agree with.
class PlainJudge : public Judge {
 public:
  PlainJudge(const Problem& problem, const TrainingGraph& training)
      : evaluator_(problem, training) {}
  std::optional<double> energy(const Strategy& strategy, uint64_t, double most) override {
    double found = 0x1.0p60;
    try {
      const Evaluation inside = evaluator_.evaluate(strategy);
      if (inside.fits)
        found = static_cast<double>(inside.time);
      else if (most >= StepJudge::kMisfit)
        found = StepJudge::kMisfit + static_cast<double>(needed(strategy));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
    if (found > most) return std::nullopt;
    return found;
  }
  bool valid(double energy) const override { return energy < StepJudge::kMisfit; }
  double scale(double energy) const override {
    return valid(energy) ? energy : energy - StepJudge::kMisfit;
  }

 private:
  int64_t needed(const Strategy& strategy) {
    if (evaluator_.tasks() < StepJudge::kFewTasks)
      if (const auto least = evaluator_.least_limit(strategy)) return *least;
    return evaluator_.evaluate_unlimited(strategy).peak;
  }

  Evaluator evaluator_;
};

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
        EXPECT_EQ(again(strategy, enough), fresh(strategy, enough));
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
  for (int round = 0; round < sampled(120); ++round) {
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
    if (rng.chance(0.7)) take_back(strategy, proposal);
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

TEST(Moves, AreTakenBackAndKnownByTheirKeys) {
  Rng rng(3);
  const Machine machine = cases::machine(4);
  for (const Graph& network : networks()) {
    const TrainingGraph training = differentiate(network);
    for (int round = 0; round < 20; ++round) {
      MoveMix mix;
      mix.compress = round % 2 == 0 ? 2 : 0;
      Moves moves(training, machine, mix);
      Strategy strategy = cases::random_strategy(training, machine, rng, {.compress = false});
      moves.adopt(strategy);
      uint64_t key = strategy_key(strategy);
      Proposal proposal;
      for (int step = 0; step < 60; ++step) {
        const Strategy before = strategy;
        const bool made = moves.propose(strategy, rng, proposal);
        const uint64_t after = strategy_key_after(key, strategy, proposal);
        EXPECT_EQ(after, strategy_key(strategy));
        try {
          check_strategy(training, machine, strategy);
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
        }
        if (made && rng.chance(0.5)) {
          key = after;
          continue;
        }
        take_back(strategy, proposal);
        EXPECT_EQ(strategy.ops, before.ops);
        EXPECT_EQ(strategy.saved, before.saved);
        EXPECT_EQ(strategy.weights, before.weights);
        EXPECT_EQ(strategy.stages, before.stages);
        EXPECT_EQ(strategy.prefetch, before.prefetch);
        EXPECT_EQ(strategy.bucket, before.bucket);
        EXPECT_EQ(strategy_key(strategy), key);
      }
    }
  }
}

// The judge with its memory and bounds decides as plain simulation does, proposal for proposal.
TEST(MarkovChain, DecidesAsPlainSimulationDoes) {
  const auto cost = analytic_cost_model();
  int64_t simulated = 0, proposals = 0;
  for (const int64_t limit : {int64_t{8} << 30, int64_t{600'000}, int64_t{150'000}})
    for (const Graph& network : networks()) {
      const Machine machine = with_limit(cases::machine(4), limit);
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const TrainingGraph training = differentiate(network);
      Rng rng(5);
      Strategy start =
          cases::random_strategy(training, machine, rng, {.pipeline = false, .compress = false});
      MoveMix mix;
      Moves moves_a(training, machine, mix), moves_b(training, machine, mix);
      StepJudge fast(problem, training);
      PlainJudge plain(problem, training);
      Strategy start_a = start, start_b = start;
      moves_a.adopt(start_a);
      moves_b.adopt(start_b);
      MarkovChain a(moves_a, fast, start_a, Rng(11), {.hot = 5e-2, .cold = 1e-3});
      MarkovChain b(moves_b, plain, start_b, Rng(11), {.hot = 5e-2, .cold = 1e-3});
      for (int round = 0; round < 4; ++round) {
        a.run(sampled(400), 0, {});
        b.run(sampled(400), 0, {});
        ASSERT_EQ(a.proposals(), b.proposals());
        ASSERT_EQ(a.accepted(), b.accepted());
        ASSERT_EQ(a.best_energy(), b.best_energy());
        ASSERT_EQ(strategy_key(a.best()), strategy_key(b.best()));
      }
      simulated += fast.simulated();
      proposals += a.proposals();
    }
  EXPECT_LT(simulated, proposals);  // it does leave some out
}

TEST(Walks, AreTheSameForAnyNumberOfThreads) {
  const auto cost = analytic_cost_model();
  const Machine machine = with_limit(cases::machine(4), 700'000);
  const Graph network = cases::transformer(8, 2, true);
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  for (const uint64_t seed : {1, 2}) {
    const SearchResult one = search_mcmc(problem, {.threads = 1, .seed = seed, .effort = 0.02});
    const SearchResult three = search_mcmc(problem, {.threads = 3, .seed = seed, .effort = 0.02});
    EXPECT_EQ(one.step_time, three.step_time);
    EXPECT_EQ(one.strategy.ops, three.strategy.ops);
    EXPECT_EQ(one.strategy.shardings, three.strategy.shardings);
    EXPECT_EQ(one.strategy.saved, three.strategy.saved);
    EXPECT_EQ(one.proposals, three.proposals);
  }
}

}  // namespace
}  // namespace windlass
