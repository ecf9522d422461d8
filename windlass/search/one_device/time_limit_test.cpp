// What a time limit cuts, by a clock that only measuring or asking moves.

#include <set>

#include <gtest/gtest.h>

#include "windlass/plan/cases.h"
#include "windlass/search/search.h"

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

}  // namespace
}  // namespace windlass
