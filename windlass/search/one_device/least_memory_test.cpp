#include "windlass/search/one_device/least_memory.h"

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

Machine one_device(int64_t limit, bool copies_itself) {
  Machine machine = cases::machine(1);
  machine.devices[0].limit = Bytes(limit);
  machine.device_types[0].copies_itself = copies_itself;
  return machine;
}

// Every task takes up to ten times as long, or a tenth.
Reprice disturbed(uint64_t seed) {
  return [seed](const TrainingGraph&, const TaskGraph& tasks, TaskTimes& times) {
    for (size_t i = 0; i < tasks.size(); ++i)
      times.duration[i] =
          1 + static_cast<Nanoseconds>(static_cast<double>(times.duration[i]) *
                                       std::pow(10, 2 * random_uniform(seed, 0, i) - 1));
  };
}

SearchResult search(const Graph& network, const Machine& machine, uint64_t seed) {
  const auto cost = analytic_cost_model();
  return search_all(
      {.network = network, .machine = machine, .cost = *cost, .reprice = disturbed(seed)},
      {.time_limit = Seconds(3600), .effort = 0.05});
}

TEST(LeastMemory, DoesNotHangOnTimes) {
  const Graph networks[] = {cases::mlp(8, 3), cases::cnn(4), cases::cnn(4, true),
                            cases::transformer(2, 2, false), cases::transformer(2, 2, true)};
  for (const Graph& network : networks)
    for (const bool copies_itself : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", network.name, copies_itself));
      std::optional<int64_t> least;
      for (uint64_t seed = 1; seed <= sampled(3u); ++seed) {
        const SearchResult none = search(network, one_device(1, copies_itself), seed);
        ASSERT_EQ(none.termination, Termination::Infeasible);
        ASSERT_TRUE(none.least_limit.has_value());
        if (!least) least = none.least_limit->value;
        EXPECT_EQ(none.least_limit->value, *least) << "seed " << seed;

        const Machine enough = one_device(*least, copies_itself);
        const SearchResult found = search(network, enough, seed);
        ASSERT_NE(found.termination, Termination::Infeasible) << "seed " << seed;
        const TaskGraph tasks = lower(found.training, found.strategy, enough);
        EXPECT_TRUE(check_tasks(found.training, enough, found.strategy, tasks).empty());

        const SearchResult less = search(network, one_device(*least - 1, copies_itself), seed);
        EXPECT_EQ(less.termination, Termination::Infeasible) << "seed " << seed;
      }
    }
}

// Copies in turn take as little as any order of copies does.
TEST(LeastMemory, NothingOverlapsInTurn) {
  const Graph network = cases::transformer(2, 2, false);
  const Machine machine = one_device(int64_t{1} << 30, false);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const TrainingGraph training = differentiate(network);
  Evaluator evaluator(problem, training);
  const BatchAxes batch = find_batch(network);
  for (const char* name : {"offload-all", "single:host-weights=on,host-update=on,bucket=4KiB",
                           "single:recompute=full,offload=on,host-weights=on,bucket=4KiB"}) {
    SCOPED_TRACE(name);
    BaselineSpec spec = parse_baseline(name);
    resolve(spec, machine, batch.samples);
    Strategy strategy = make_baseline(spec, training, batch, machine);
    strategy.prefetch = 0;
    const auto beside = evaluator.least_limit(strategy);
    strategy.in_turn = true;
    const auto in_turn = evaluator.least_limit(strategy);
    ASSERT_TRUE(beside && in_turn);
    EXPECT_LE(*in_turn, *beside);
    EXPECT_EQ(*in_turn, evaluator.evaluate_unlimited(strategy).peak);
  }
}

}  // namespace
}  // namespace windlass
