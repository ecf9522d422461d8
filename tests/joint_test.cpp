// The joint search against brute force over small spaces of strategies.

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/search/book/evaluate.h"
#include "windlass/search/exact/sharding/sharding_options.h"
#include "windlass/search/search.h"

namespace windlass {
namespace {

// A network of one or two dense layers of random sizes.
Graph small_network(Rng& rng) {
  cases::Net net("small");
  const int64_t batch = 4 << rng.integer(0, 3);
  const auto width = [&] { return int64_t{8} << rng.integer(0, 4); };
  const int64_t classes = width();
  TensorId x = net.b.input("x", cases::f32({batch, width()}));
  if (rng.chance(0.6)) x = net.linear(x, width(), "first");
  if (rng.chance(0.5)) x = net.relu(x, "relu");
  x = net.linear(x, classes, "last");
  return net.finish(x);
}

struct Truth {
  std::optional<Nanoseconds> best;  // inside of the limit
  int64_t least_limit = INT64_MAX;  // of any
  int64_t strategies = 0;
};

// Every sharding of every op, every action of every saved tensor, and some homes of all weights
// together.
Truth brute_force(const Problem& problem, const TrainingGraph& training) {
  Evaluator evaluator(problem, training);
  const auto hints = block_hints(training.graph, training.forward_ops);
  const auto devices = static_cast<int64_t>(problem.machine.devices.size());
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.groups[0].clear();
  for (size_t d = 0; d < problem.machine.devices.size(); ++d)
    strategy.groups[0].push_back(DeviceId(d));
  std::vector<std::vector<Sharding>> options;
  for (size_t i = 0; i < training.forward_ops; ++i)
    options.push_back(
        shardings_of(loops_of(training.graph, training.graph.ops[i]), hints[i], devices));
  std::vector<size_t> tensors;
  for (size_t s = 0; s < training.saved.size(); ++s)
    if (training.saved[s].producer.valid()) tensors.push_back(s);
  constexpr MemoryAction kActions[] = {MemoryAction::Keep, MemoryAction::Recompute,
                                       MemoryAction::Offload};
  constexpr Residency kHomes[] = {{.zero = 0},
                                  {.zero = 1},
                                  {.zero = 3},
                                  {.zero = 0, .host = false, .host_update = true},
                                  {.zero = 0, .host = true, .host_update = true}};
  strategy.shardings.resize(training.forward_ops);
  for (size_t i = 0; i < training.forward_ops; ++i) strategy.ops[i] = static_cast<int32_t>(i);
  Truth truth;
  std::vector<size_t> shard(training.forward_ops, 0), action(tensors.size(), 0);
  const auto next = [](std::vector<size_t>& digits, auto&& size) {
    for (size_t i = 0; i < digits.size(); ++i) {
      if (++digits[i] < size(i)) return true;
      digits[i] = 0;
    }
    return false;
  };
  do {
    for (size_t i = 0; i < shard.size(); ++i) strategy.shardings[i] = options[i][shard[i]];
    do {
      for (size_t t = 0; t < tensors.size(); ++t) strategy.saved[tensors[t]] = kActions[action[t]];
      for (const Residency& home : kHomes) {
        std::ranges::fill(strategy.weights, home);
        ++truth.strategies;
        const Evaluation free = evaluator.evaluate_unlimited(strategy);
        if (evaluator.standing(strategy) < truth.least_limit)
          if (const auto least = evaluator.least_limit(strategy))
            truth.least_limit = std::min(truth.least_limit, *least);
        if (truth.best && free.time >= *truth.best) continue;
        const Evaluation inside = evaluator.evaluate(strategy);
        if (inside.fits && (!truth.best || inside.time < *truth.best)) truth.best = inside.time;
      }
    } while (next(action, [&](size_t) { return std::size(kActions); }));
  } while (next(shard, [&](size_t i) { return options[i].size(); }));
  return truth;
}

TEST(JointSlow, FindsWhatBruteForceFinds) {
  const auto cost = analytic_cost_model();
  const uint64_t seeds = thorough() ? 16 : 6;
  int decided = 0, optimal = 0, infeasible = 0;
  double worst = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Rng rng(seed);
    const Graph network = small_network(rng);
    const TrainingGraph training = differentiate(network);
    Machine machine = cases::machine(2);
    const Problem free = {.network = network, .machine = machine, .cost = *cost};
    const Truth all = brute_force(free, training);
    ASSERT_TRUE(all.best.has_value());
    Evaluator evaluator(free, training);
    const auto peak = static_cast<double>(
        evaluator.evaluate_unlimited(plain_strategy(training, DeviceId(size_t{0}))).peak);
    const auto low = static_cast<double>(all.least_limit);
    // From a little below what anything needs to what everything on one device needs.
    const double limit = 0.9 * low + (peak - 0.9 * low) * rng.uniform() * rng.uniform();
    for (Device& device : machine.devices) device.limit = Bytes(static_cast<int64_t>(limit));
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    const Truth truth = brute_force(problem, training);
    const SearchResult found = search_all(problem, {.micro_batches = 1, .seed = seed});
    EXPECT_LE(found.lower_bound,
              found.termination == Termination::Infeasible ? found.lower_bound : found.step_time);
    if (found.termination == Termination::Infeasible) {
      ++infeasible;
      EXPECT_FALSE(truth.best.has_value()) << seed;
      ASSERT_TRUE(found.least_limit.has_value());
      EXPECT_GT(found.least_limit->value, machine.devices[0].limit.value);
      // It knows more strategies than brute force tries.
      EXPECT_LE(found.least_limit->value, truth.least_limit) << seed;
      continue;
    }
    const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
    ASSERT_EQ(step.result.status, SimStatus::Done);
    EXPECT_EQ(check_tasks(found.training, machine, found.strategy, step.tasks),
              std::vector<std::string>{});
    if (!truth.best) continue;
    ++decided;
    const double best = step_time(problem, *truth.best).value;
    worst = std::max(worst, found.step_time.value / best - 1);
    // Plans that are nearer to each other are not told apart (search/ladder.cpp).
    constexpr double kNearTime = 1.003;
    optimal += found.step_time.value <= best * kNearTime ? 1 : 0;
    // Never below what the bound allows.
    EXPECT_LE(found.lower_bound.value, best);
  }
  RecordProperty("decided", decided);
  EXPECT_GE(decided, static_cast<int>(seeds / 2));
  EXPECT_GE(infeasible, 1);
  EXPECT_GE(optimal, (decided * 95 + 99) / 100) << "worst " << worst;
}

// Where nothing fits: at the limit that is named there is a plan, 1 % below there is none, and no
// strategy of those that brute force knows needs less.
TEST(LeastLimitSlow, IsTheTrueOne) {
  const auto cost = analytic_cost_model();
  const uint64_t seeds = thorough() ? 100 : 2;
  int packs = 0;
  for (uint64_t seed = 1000; seed < 1000 + seeds; ++seed) {
    Rng rng(seed);
    const Graph network = small_network(rng);
    Machine machine = cases::machine(2);
    const auto found_at = [&](int64_t limit) {
      for (Device& device : machine.devices) device.limit = Bytes(limit);
      return search_all({.network = network, .machine = machine, .cost = *cost}, {.seed = seed});
    };
    const SearchResult refused = found_at(64);
    ASSERT_EQ(refused.termination, Termination::Infeasible) << seed;
    ASSERT_TRUE(refused.least_limit.has_value()) << seed;
    const int64_t least = refused.least_limit->value;
    packs += refused.strategy.packs.has_value();
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    const TrainingGraph training = differentiate(network);
    EXPECT_LE(least, brute_force(problem, training).least_limit) << seed;
    EXPECT_NE(found_at(least).termination, Termination::Infeasible) << seed;
    const SearchResult below = found_at(least * 99 / 100);
    EXPECT_EQ(below.termination, Termination::Infeasible) << seed;
    EXPECT_EQ(below.least_limit, refused.least_limit) << seed;
  }
  RecordProperty("packs", packs);
}

}  // namespace
}  // namespace windlass
