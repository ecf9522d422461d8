#include "windlass/search/bounds/split_bound.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/search/book/evaluate.h"
#include "windlass/search/bounds/work_bound.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

double split_bound_of(const Problem& problem, const TrainingGraph& whole, int64_t micro_batches) {
  const WorkBound work(problem, whole);
  SplitBound bound(problem, whole, work.updates(0).value, work.host_updates().value, micro_batches);
  return bound();
}

std::vector<Graph> split_networks() {
  return {cases::mlp(16, 3, 64),
          cases::cnn(16, true),
          cases::transformer(8, 2, true),
          cases::unfused_transformer(4),
          cases::lstm(4),
          cases::mixture(4),
          cases::unet(4),
          cases::repeated(4),
          cases::sequences(4, 8),
          cases::noisy(4)};
}

// Any shardings, actions, homes of weights, stages and numbers of micro-batches, on machines with
// fast links and slow ones.
TEST(SplitBound, NoRandomStrategyIsFaster) {
  const auto cost = analytic_cost_model();
  Rng rng(11);
  int all = 0, pipelines = 0, near = 0;
  for (const Machine& machine :
       {cases::machine(1), cases::machine(2), cases::machine(4), cases::machine(4, 2),
        cases::machine(6), load_machine("4x3090"), load_machine("8xa100-80g")})
    for (const Graph& network : split_networks()) {
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const TrainingGraph whole = differentiate(network);
      const BatchAxes batch = find_batch(network);
      for (int round = 0; round < sampled(24); ++round) {
        int64_t parts = batch.obstacle.empty() ? rng.integer(1, 4) : 1;
        while (batch.samples % parts != 0) --parts;
        const MicroBatch cut = cut_training(network, batch, parts, {});
        Strategy strategy = cases::random_strategy(
            cut.training, machine, rng,
            {.weights = rng.chance(0.5), .pipeline = rng.chance(0.5), .sharded = rng.uniform()});
        strategy.micro_batches = parts;
        if (rng.chance(0.5)) std::ranges::fill(strategy.saved, MemoryAction::Keep);
        double time = 0;
        try {
          Evaluator evaluator(problem, cut.training);
          time = static_cast<double>(evaluator.evaluate_unlimited(strategy).time) * 1e-9;
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::Internal) throw;
          continue;
        }
        const double least = split_bound_of(problem, whole, parts);
        EXPECT_LE(least, time) << network.name << " " << machine.name << " " << parts << " "
                               << strategy.groups.size();
        ++all;
        pipelines += strategy.groups.size() > 1 ? 1 : 0;
        near += 2 * least > time ? 1 : 0;
      }
    }
  EXPECT_GT(all, sampled(500));
  EXPECT_GT(pipelines, all / 20);
  EXPECT_GT(near, all / 50);
}

// One sharding of all ops alike is what plans look like.
TEST(SplitBound, NoNamedStrategyIsFaster) {
  const auto cost = analytic_cost_model();
  const char* const models[] = {"gpt2:layers=3", "resnet-18", "mobilenet-v2",  "nmt",
                                "rnnlm",         "swin-t",    "bert:layers=3", "densenet-121"};
  const char* const strategies[] = {"single",
                                    "data-parallel",
                                    "zero:stage=1",
                                    "zero:stage=2,micro-batches=2",
                                    "zero:stage=3",
                                    "recompute-all",
                                    "data-parallel:host-update=on",
                                    "megatron:tp=4",
                                    "megatron:tp=2,dp=2,micro-batches=2",
                                    "megatron:tp=2,sequence-parallel=on",
                                    "1f1b:stages=2,micro-batches=8",
                                    "1f1b:stages=4,micro-batches=16",
                                    "gpipe:stages=4,micro-batches=4",
                                    "one-weird-trick"};
  int seen = 0, near = 0, at = 0;
  for (const char* machine_name : {"1x3090", "4x1080ti", "4xv100-16g", "8xa100-80g", "8x2080ti"})
    for (const char* model : models) {
      if (hurried() && ++at % 4 != 0) continue;
      const Machine machine = load_machine(machine_name);
      const Graph network = load_model(model, {.batch = 32}).graph;
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const double bound = work_bound(problem).value;
      double best = 1e30;
      for (const char* name : strategies) {
        try {
          const PreparedStep step = prepare_step(network, parse_baseline(name), machine, {});
          Evaluator evaluator(problem, step.training);
          const double time =
              step_time(problem, evaluator.evaluate_unlimited(step.strategy).time).value;
          EXPECT_LE(bound, time) << model << " " << name << " " << machine_name;
          best = std::min(best, time);
          ++seen;
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::Input && error.kind() != ErrorKind::Unsupported) throw;
        }
      }
      near += bound > 0.75 * best ? 1 : 0;
    }
  EXPECT_GT(seen, hurried() ? 60 : 240);
  EXPECT_GE(near, hurried() ? 3 : 14);
}

TEST(SplitBound, NoPacksAreFaster) {
  const auto cost = analytic_cost_model();
  Rng rng(5);
  int all = 0;
  for (const Graph& network : {cases::mlp(16, 4, 64), cases::transformer(8, 2, true)})
    for (const Machine& machine : {cases::machine(1), cases::machine(2), cases::machine(4)}) {
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const TrainingGraph whole = differentiate(network);
      const int64_t samples = find_batch(network).samples;
      const LayerProfile chain = bytes_of_layers(whole, find_layers(network), samples);
      const double least = split_bound_of(problem, whole, 0);
      Evaluator evaluator(problem, whole);
      for (int round = 0; round < sampled(30); ++round) {
        const Strategy strategy = strategy_of_packs(
            cases::random_packs(chain, samples, static_cast<int64_t>(machine.devices.size()), rng));
        try {
          const Nanoseconds time = evaluator.evaluate_unlimited(strategy).time;
          EXPECT_LE(least, static_cast<double>(time) * 1e-9) << network.name << machine.name;
          ++all;
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::Internal) throw;
        }
      }
    }
  EXPECT_GT(all, sampled(60));
}

}  // namespace
}  // namespace windlass
