// Searches that split positions of sequences and experts.

#include <gtest/gtest.h>

#include "windlass/graph/expert_slots.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/check.h"
#include "windlass/plan/degrees.h"
#include "windlass/search/search.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

FixedDecisions with_cp(int64_t cp) {
  FixedDecisions fixed;
  fixed.cp = cp;
  return fixed;
}
FixedDecisions with_ep(int64_t ep) {
  FixedDecisions fixed;
  fixed.ep = ep;
  return fixed;
}

class SplitSearch : public testing::Test {
 protected:
  SearchResult search(const Graph& network, const Machine& machine, const FixedDecisions& fixed,
                      const Graph* with_slots = nullptr, const char* method = "grid") const {
    const Problem problem = {
        .network = network, .machine = machine, .cost = *cost_, .with_slots = with_slots};
    SearchOptions options;
    options.time_limit = Seconds(3600);
    options.effort = 0.05;
    options.fixed = fixed;
    return find_search_method(method, machine).search(problem, options);
  }
  static Degrees degrees(const Graph& network, const SearchResult& result) {
    return degrees_of(result.training, find_batch(network), result.strategy, result.samples);
  }
  static void expect_sound(const SearchResult& result, const Machine& machine) {
    const TaskGraph tasks = lower(result.training, result.strategy, machine);
    EXPECT_TRUE(check_tasks(result.training, machine, result.strategy, tasks).empty());
  }

  std::unique_ptr<CostModel> cost_ = analytic_cost_model();
};

// One sample, whose heads cannot be shared out over four devices: its positions can.
TEST_F(SplitSearch, LongSequencesAreSplit) {
  const Machine machine = cases::machine(4);
  const Graph network = cases::sequences(1, 8192);
  const SearchResult found = search(network, machine, {});
  ASSERT_EQ(found.termination, Termination::Feasible);
  EXPECT_EQ(degrees(network, found).cp, 4);
  expect_sound(found, machine);
  const SearchResult without = search(network, machine, with_cp(1));
  ASSERT_EQ(without.termination, Termination::Feasible);
  EXPECT_EQ(degrees(network, without).cp, 1);
  EXPECT_LT(found.step_time, without.step_time);
}

TEST_F(SplitSearch, ShortSequencesAreSplitWhereTheUserSaysSo) {
  const Machine machine = cases::machine(2);
  const Graph network = cases::transformer(2, 1, false);
  const SearchResult fixed = search(network, machine, with_cp(2));
  ASSERT_EQ(fixed.termination, Termination::Feasible);
  EXPECT_EQ(degrees(network, fixed).cp, 2);
  EXPECT_EQ(degrees(network, search(network, machine, {})).cp, 1);
}

// To add up the gradients of experts over replicas takes longer than to send each row to one of
// them, and so does it to have all rows everywhere.
TEST_F(SplitSearch, ExpertsAreSplitWhereThatPays) {
  const Machine machine = cases::machine(4);
  const Graph network = cases::wide_mixture(4);
  const Graph slots = with_expert_slots(network, 1.5);
  for (const char* method : {"grid", "auto"}) {
    SCOPED_TRACE(method);
    const SearchResult plain = search(network, machine, {}, nullptr, method);
    const SearchResult found = search(network, machine, {}, &slots, method);
    ASSERT_EQ(found.termination, Termination::Feasible);
    EXPECT_TRUE(found.in_slots);
    EXPECT_GT(degrees(slots, found).ep, 1);
    EXPECT_LT(found.step_time, plain.step_time);
    expect_sound(found, machine);
    // The same as without the other network.
    const SearchResult whole = search(network, machine, with_ep(1), &slots, method);
    EXPECT_FALSE(whole.in_slots);
    const SearchResult half = search(network, machine, with_ep(2), &slots, method);
    EXPECT_TRUE(half.in_slots);
    EXPECT_EQ(degrees(slots, half).ep, 2);
  }
}

// Where the network as it is is faster, its plan is the answer.
TEST_F(SplitSearch, ExpertsStayTogetherWhereThatIsFaster) {
  const Machine machine = cases::machine(2);
  const Graph network = cases::mixture(4), slots = with_expert_slots(network, 1.5);
  const SearchResult plain = search(network, machine, {});
  const SearchResult found = search(network, machine, {}, &slots);
  if (!found.in_slots) {
    EXPECT_EQ(found.step_time, plain.step_time);
  } else {
    EXPECT_LT(found.step_time, plain.step_time);
  }
  for (size_t i = 1; i < found.frontier.size(); ++i) {
    EXPECT_LT(found.frontier[i - 1].limit, found.frontier[i].limit);
    EXPECT_GT(found.frontier[i - 1].step_time, found.frontier[i].step_time);
  }
}

}  // namespace
}  // namespace windlass
