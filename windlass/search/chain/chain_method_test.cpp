#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/search/search.h"
#include "windlass/sim/timeline_check.h"

namespace windlass {
namespace {

Machine chain_machine(const Machine& machine, int64_t limit) {
  Machine result = machine;
  for (Device& device : result.devices) device.limit = Bytes(limit);
  return result;
}

// From everything kept down to where nothing fits: never above the limit, the checker agrees, a
// larger limit is not slower (by more than 1 %, since search is local), and what is said to be the
// least limit is enough.
TEST(ChainMethod, HoldsAtEveryLimit) {
  const auto cost = analytic_cost_model();
  for (const int devices : {1, 4})
    for (const Graph& network :
         {cases::mlp(16, 12), cases::cnn(16, true), cases::transformer(8, 4, false)}) {
      const Machine machine = cases::machine(devices);
      const Problem free = {.network = network, .machine = machine, .cost = *cost};
      const SearchResult kept = search_chain(free);
      ASSERT_EQ(kept.termination, Termination::Feasible);
      ASSERT_FALSE(kept.frontier.empty());
      const auto most = static_cast<double>(kept.frontier.back().limit.value);
      Seconds fastest = kept.step_time;
      bool infeasible = false;
      for (const double part : {1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.02}) {
        const Machine limited = chain_machine(machine, static_cast<int64_t>(part * most));
        const Problem problem = {.network = network, .machine = limited, .cost = *cost};
        const SearchResult found = search_chain(problem);
        SCOPED_TRACE(network.name + " " + std::to_string(part));
        if (found.termination == Termination::Infeasible) {
          infeasible = true;
          ASSERT_TRUE(found.least_limit.has_value());
          EXPECT_GT(*found.least_limit, limited.devices[0].limit);
          const Machine enough = chain_machine(machine, found.least_limit->value);
          const SimulatedStep step = simulate_step(found.training, found.strategy, enough, *cost);
          EXPECT_EQ(step.result.status, SimStatus::Done);
          continue;
        }
        EXPECT_FALSE(infeasible);
        const SimulatedStep step = simulate_step(found.training, found.strategy, limited, *cost);
        ASSERT_EQ(step.result.status, SimStatus::Done);
        EXPECT_EQ(check_tasks(found.training, limited, found.strategy, step.tasks),
                  std::vector<std::string>{});
        EXPECT_EQ(check_run(step.tasks, step.times, step.result), std::vector<std::string>{});
        EXPECT_NEAR(step.step_time().value, found.step_time.value, 1e-12);
        EXPECT_LE(found.lower_bound, found.step_time);
        EXPECT_GE(found.step_time.value, 0.99 * fastest.value);
        fastest = std::max(fastest, found.step_time);
      }
      EXPECT_TRUE(infeasible);
    }
}

}  // namespace
}  // namespace windlass
