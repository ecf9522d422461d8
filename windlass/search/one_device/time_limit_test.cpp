// What a time limit cuts, by a clock that only measuring or asking moves.

#include <algorithm>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

#include "windlass/plan/cases.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

// Measures each cut of a batch once, which takes 100 seconds; nothing else takes time.
struct SlowMeasuring {
  std::set<size_t> measured;  // by the bytes of a micro-batch's input

  SearchResult search(const Graph& network, int64_t memory, double limit) {
    Machine machine = cases::machine(1);
    machine.devices[0].limit = Bytes(memory);
    const auto cost = analytic_cost_model();
    const auto spent = [this] { return 100.0 * static_cast<double>(measured.size()); };
    const Problem problem = {
        .network = network,
        .machine = machine,
        .cost = *cost,
        .reprice =
            [this](const TrainingGraph& training, const TaskGraph&, TaskTimes&) {
              measured.insert(static_cast<size_t>(
                  element_count(training.graph[training.graph.ops[0].inputs[0]].type.shape)));
            },
        .measuring = [&] { return Seconds(spent()); }};
    return search_one_device(problem, {.time_limit = Seconds(limit), .clock = spent});
  }
};

int64_t free_peak(const Graph& network) {
  const SearchResult found = SlowMeasuring().search(network, int64_t{1} << 40, 1e9);
  return found.frontier.back().limit.value;
}

// Measuring a cut takes longer than the limit, which is left to the search; but no further cut is
// measured, and that is said.
TEST(TimeLimit, MeasuringIsNoSearch) {
  const Graph network = cases::transformer(8, 4);
  const int64_t memory = free_peak(network) * 7 / 10;
  SlowMeasuring patient, hasty;
  const SearchResult all = patient.search(network, memory, 1e9);
  const SearchResult first = hasty.search(network, memory, 1);
  ASSERT_EQ(all.termination, Termination::Feasible);
  EXPECT_EQ(patient.measured.size(), 3);  // 1, 2 and 4 micro-batches
  ASSERT_EQ(first.termination, Termination::Limit);
  EXPECT_EQ(hasty.measured.size(), 1);
  EXPECT_GT(first.tried, 20);
  EXPECT_LT(first.tried, all.tried);
  EXPECT_EQ(first.seconds.value, 100);
}

// What fits only in small pieces is found however long measuring takes.
TEST(TimeLimit, AnAnswerIsMeasured) {
  const Graph network = cases::transformer(8, 4);
  const SearchResult none = SlowMeasuring().search(network, 1, 1e9);
  ASSERT_TRUE(none.least_limit.has_value());
  SlowMeasuring hasty;
  const SearchResult found = hasty.search(network, none.least_limit->value, 1);
  EXPECT_NE(found.termination, Termination::Infeasible);
  EXPECT_GT(hasty.measured.size(), 1);
}

// A clock that is past the limit whenever it is asked: little is tried, with an answer and without.
TEST(TimeLimit, EveryStageLooksAtTheClock) {
  const Graph network = cases::transformer(8, 4);
  const int64_t memory = free_peak(network) * 7 / 10;
  Machine machine = cases::machine(1);
  const auto cost = analytic_cost_model();
  for (const int64_t limit : {memory, int64_t{1}}) {
    machine.devices[0].limit = Bytes(limit);
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    double now = 0;
    const SearchResult late = search_one_device(problem, {.clock = [&] { return now += 1e3; }});
    const SearchResult all = search_one_device(problem, {.time_limit = Seconds(1e9)});
    EXPECT_EQ(late.termination == Termination::Infeasible, limit == 1);
    EXPECT_LT(late.tried, 30) << limit;
    EXPECT_GT(all.tried, 4 * late.tried) << limit;
  }
}

// A machine that is slow, but not so slow that the limit cuts, finds what a fast one finds.
TEST(TimeLimit, DoesNotDecideWhatIsFoundUnlessItCuts) {
  const Graph network = cases::transformer(8, 2, false);
  Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const Problem whole = {.network = network, .machine = machine, .cost = *cost};
  const int64_t peak = search_all(whole, {.effort = 0.1}).frontier.back().limit.value;
  for (Device& device : machine.devices) device.limit = Bytes(peak * 6 / 10);
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  double now = -1;  // the limit is nearly over once the search has begun
  const SearchResult fast = search_all(problem, {.effort = 0.1, .clock = [] { return 0.0; }});
  const SearchResult slow = search_all(problem, {.effort = 0.1, .clock = [&] {
                                                   now = now < 0 ? 0 : 59;
                                                   return now;
                                                 }});
  ASSERT_EQ(fast.termination, Termination::Feasible);
  EXPECT_EQ(slow.termination, Termination::Feasible);
  EXPECT_EQ(slow.step_time, fast.step_time);
  EXPECT_EQ(slow.tried, fast.tried);
  EXPECT_EQ(slow.proposals, fast.proposals);
  EXPECT_EQ(slow.strategy.ops, fast.strategy.ops);
  EXPECT_EQ(slow.strategy.saved, fast.strategy.saved);
  ASSERT_EQ(slow.stages.size(), fast.stages.size());
  int64_t simulated = 0;
  for (size_t i = 0; i < fast.stages.size(); ++i) {
    EXPECT_EQ(slow.stages[i].name, fast.stages[i].name);
    EXPECT_EQ(slow.stages[i].units, fast.stages[i].units);
    EXPECT_FALSE(fast.stages[i].time_limit);
    simulated += fast.stages[i].simulated;
  }
  EXPECT_EQ(simulated, fast.tried);
}

// What is cut is said, stage by stage.
TEST(TimeLimit, SaysWhatItCut) {
  const Graph network = cases::transformer(8, 2, false);
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  double now = 0;
  const SearchResult late =
      search_all(problem, {.effort = 0.1, .clock = [&] { return now += 1e3; }});
  ASSERT_EQ(late.termination, Termination::Limit);
  const auto cut = [&](std::string_view name) {
    return std::ranges::any_of(late.stages, [&](const StageEffort& stage) {
      return stage.name == name && stage.time_limit && !stage.complete;
    });
  };
  EXPECT_TRUE(cut("structures"));
  EXPECT_TRUE(cut("exact search"));
  EXPECT_TRUE(cut("Markov chains"));
}

// An effort that does not suffice ends a stage, which is no matter of time.
TEST(TimeLimit, EffortIsNone) {
  const Graph network = cases::mlp(16, 3);
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchOptions options;
  Ledger ledger(problem, options);
  ledger.begin("long enough", 1e6);
  const auto strategy = ledger.named(parse_baseline("data-parallel"), 1);
  ASSERT_TRUE(strategy);
  EXPECT_TRUE(ledger.consider(*strategy, 1).fits);
  EXPECT_FALSE(ledger.over());
  ledger.begin("too short", 5);
  EXPECT_FALSE(ledger.over());
  ledger.consider(*strategy, 1);  // its step is known
  EXPECT_FALSE(ledger.over());
  const auto other = ledger.named(parse_baseline("single"), 1);
  ASSERT_TRUE(other);
  ledger.consider(*other, 1);
  EXPECT_TRUE(ledger.over());
  ledger.leave_out("much");
  const SearchResult found = ledger.finish();
  EXPECT_EQ(found.termination, Termination::Feasible);
  ASSERT_GE(found.stages.size(), 2u);
  EXPECT_TRUE(found.stages[0].complete);
  EXPECT_GT(found.stages[0].units, 5);
  EXPECT_FALSE(found.stages[1].complete);
  EXPECT_FALSE(found.stages[1].time_limit);
  EXPECT_EQ(found.stages[1].left_out, "much");
}

}  // namespace
}  // namespace windlass
