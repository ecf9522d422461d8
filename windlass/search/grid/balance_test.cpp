#include "windlass/search/grid/balance.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/plan/step.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

// Fast and slow devices by turns; three times as fast in everything.
Machine fast_and_slow(const std::string& slow_memory = "8GiB") {
  return machine_from_json(fmt::format(R"({{"name": "by turns", "device_types": {{
        "fast": {{"memory": "8GiB", "peak": {{"fp32": "12TFLOPS"}}, "memory_bandwidth": "600GB/s",
                 "launch_overhead": "1us"}},
        "slow": {{"memory": "{}", "peak": {{"fp32": "4TFLOPS"}}, "memory_bandwidth": "200GB/s",
                 "launch_overhead": "1us"}}}},
        "nodes": [{{"host": {{"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"}},
                   "devices": [{{"type": "fast"}}, {{"type": "slow"}}, {{"type": "fast"}}, {{"type": "slow"}}],
                   "switches": ["root"],
                   "links": [{{"from": "gpu*", "to": "root", "bandwidth": "100GB/s"}},
                             {{"from": "root", "to": "host", "bandwidth": "100GB/s"}}]}}]}})",
                                       slow_memory),
                           "test");
}

TEST(Balance, FastReplicasHaveMoreSamples) {
  const Graph network = cases::mlp(4096, 3, 1024);
  const Machine machine = fast_and_slow();
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchOptions options;
  Ledger ledger(problem, options);
  const auto equal = ledger.named(parse_baseline("data-parallel"), 1);
  ASSERT_TRUE(equal);
  Cut& cut = ledger.cut(1);
  const auto lists = balanced_samples(problem, cut, *equal, 4);
  ASSERT_EQ(lists.size(), 1u);
  // 4096 x 3/8 = 1536 and 512, but for what every device does alike.
  EXPECT_GT(lists[0][0], 2 * lists[0][1]);
  EXPECT_EQ(lists[0][0] + lists[0][1] + lists[0][2] + lists[0][3], 4096);
  Strategy sized = *equal;
  size_replicas(cut.training, cut.batch, {lists[0]}, sized);
  const Nanoseconds before = cut.evaluator->evaluate(*equal).time;
  const Nanoseconds after = cut.evaluator->evaluate(sized).time;
  EXPECT_LT(static_cast<double>(after), 0.7 * static_cast<double>(before));
  // By hand nothing is much better.
  for (int32_t shift : {-64, -16, 16, 64}) {
    Strategy other = *equal;
    size_replicas(
        cut.training, cut.batch,
        {{lists[0][0] + shift, lists[0][1] - shift, lists[0][2] + shift, lists[0][3] - shift}},
        other);
    EXPECT_GT(static_cast<double>(cut.evaluator->evaluate(other).time),
              0.98 * static_cast<double>(after));
  }
}

TEST(Balance, GridFindsIt) {
  const Graph network = cases::mlp(4096, 3, 1024);
  const Machine machine = fast_and_slow();
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchResult found = search_grid(problem, {});
  ASSERT_EQ(found.termination, Termination::Feasible);
  EXPECT_TRUE(std::ranges::any_of(found.strategy.shardings, unequal)) << found.strategy.name;
  const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
  EXPECT_THAT(check_tasks(found.training, machine, found.strategy, step.tasks), testing::IsEmpty());
}

// Devices that are alike have nothing to balance.
TEST(Balance, LikeReplicasStayEqual) {
  const Graph network = cases::mlp(64, 2, 64);
  const Machine machine = cases::machine(4);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchOptions options;
  Ledger ledger(problem, options);
  const auto equal = ledger.named(parse_baseline("data-parallel"), 1);
  ASSERT_TRUE(equal);
  EXPECT_TRUE(balanced_samples(problem, ledger.cut(1), *equal, 4).empty());
  // By name: the same strategy.
  const auto named = ledger.named(parse_baseline("data-parallel:balance=speed"), 1);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->shardings, equal->shardings);
}

}  // namespace
}  // namespace windlass
