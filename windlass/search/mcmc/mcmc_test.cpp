// Moves and chains against plain evaluation.

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

Machine limited(Machine machine, int64_t limit) {
  for (Device& device : machine.devices) device.limit = Bytes(limit);
  return machine;
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

TEST(Moves, AreTakenBackAndKnownByTheirKeys) {
  Rng rng(3);
  const Machine machine = cases::machine(4);
  for (const Graph& network :
       {cases::mlp(16, 3, 64), cases::cnn(16, true), cases::transformer(8, 2, true)}) {
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
    for (const Graph& network :
         {cases::mlp(16, 3, 64), cases::cnn(16, true), cases::transformer(8, 2, true)}) {
      const Machine machine = limited(cases::machine(4), limit);
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

// The same with networks of several windows, where what is known of one hangs on the op before it.
TEST(MarkovChain, DecidesAsPlainSimulationDoesOnLargeNetworks) {
  const auto cost = analytic_cost_model();
  for (const char* machine_name : {"8xa100-80g", "8x1080ti"})
    for (const char* model : {"inception-v3", "gpt2:layers=4"}) {
      const Machine machine = load_machine(machine_name);
      const Graph network = load_model(model, {.batch = 256}).graph;
      const PreparedStep step =
          prepare_step(network, parse_baseline("data-parallel"), machine, TrainingOptions());
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const MoveMix mix = {.one_tensor = 0, .tensors_alike = 0, .exchange = 0, .weights = 0.1};
      Moves moves(step.training, machine, mix);
      Strategy start = step.strategy;
      moves.adopt(start);
      StepJudge fast(problem, step.training);
      PlainJudge plain(problem, step.training);
      MarkovChain a(moves, fast, start, Rng(1), {}), b(moves, plain, start, Rng(1), {});
      for (int round = 0; round < 2; ++round) {
        a.run(sampled(1500), 0, {});
        b.run(sampled(1500), 0, {});
        ASSERT_EQ(a.accepted(), b.accepted()) << model << " on " << machine_name;
        ASSERT_EQ(a.best_energy(), b.best_energy());
      }
    }
}

TEST(Walks, AreTheSameForAnyNumberOfThreads) {
  const auto cost = analytic_cost_model();
  const Machine machine = limited(cases::machine(4), 700'000);
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
