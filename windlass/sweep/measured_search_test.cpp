#include "windlass/sweep/measured_search.h"

#include <gtest/gtest.h>

#include "windlass/plan/cases.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

// Finds whatever strategy it is told to.
class MeasuredSearchTest : public testing::Test {
 protected:
  const Graph network_ = cases::mlp(1 << 13, 6, 256);
  Machine machine_ = cases::machine(2);
  std::unique_ptr<CostModel> cost_ = analytic_cost_model();
  Reprice reprice_ = [](const TrainingGraph&, const TaskGraph&, TaskTimes&) {};
  std::vector<int64_t> limits_;  // that were searched for

  using Choice = std::function<std::string(int64_t limit)>;

  SearchResult named(const std::string& name, const Machine& machine) const {
    PreparedStep step = prepare_step(network_, parse_baseline(name), machine, {});
    SearchResult result;
    result.termination = Termination::Feasible;
    result.samples = step.samples;
    result.training = std::move(step.training);
    result.strategy = std::move(step.strategy);
    result.tried = 1;
    return result;
  }

  MeasuredResult search(const Choice& choose, bool usual,
                        Termination says = Termination::Feasible) {
    const SearchMethod method = {"made up", "", [&](const Problem& problem, const SearchOptions&) {
                                   const int64_t limit = problem.machine.devices[0].limit.value;
                                   limits_.push_back(limit);
                                   SearchResult result = named(choose(limit), problem.machine);
                                   result.termination = says;
                                   return result;
                                 }};
    const Problem problem = {
        .network = network_, .machine = machine_, .cost = *cost_, .reprice = reprice_};
    return search_then_measure(method, problem, {}, usual);
  }

  Seconds time_of(const std::string& name) const {
    const SearchResult one = named(name, machine_);
    return simulate_step(one.training, one.strategy, machine_, *cost_).step_time();
  }
};

TEST_F(MeasuredSearchTest, TriesWhatUsersWouldTry) {
  const auto single = [](int64_t) { return "single"; };
  const MeasuredResult alone = search(single, false), beside = search(single, true);
  ASSERT_TRUE(alone.fits && beside.fits);
  EXPECT_EQ(alone.search.step_time, time_of("single"));
  Seconds least = time_of("single");
  for (const std::string& name : usual_strategies(2))
    if (name != "lru" && !name.starts_with("megatron")) least = std::min(least, time_of(name));
  EXPECT_LE(beside.search.step_time, least);
  EXPECT_LT(beside.search.step_time, alone.search.step_time);
  EXPECT_GT(beside.search.tried, alone.search.tried);
  EXPECT_EQ(beside.step.step_time(), beside.search.step_time);
}

// Kernels hold more than the model says: the search is asked for less until what it finds fits.
TEST_F(MeasuredSearchTest, AsksForLessWhereMoreIsHeld) {
  const auto peak_of = [&](const std::string& name) {
    const SearchResult one = named(name, machine_);
    return simulate_step(one.training, one.strategy, machine_, *cost_).result.peaks[0].bytes;
  };
  const int64_t large = peak_of("data-parallel"), small = peak_of("data-parallel:micro=512");
  ASSERT_LT(small, large);
  machine_ = cases::machine(2, 1, std::to_string(large) + "B");
  reprice_ = [&](const TrainingGraph&, const TaskGraph&, TaskTimes& times) {
    for (int64_t& bytes : times.workspace) bytes += (large - small) / 2;
  };
  const MeasuredResult found = search(
      [&](int64_t limit) {
        return limit >= large * 9 / 10 ? "data-parallel" : "data-parallel:micro=512";
      },
      false);
  ASSERT_TRUE(found.fits);
  EXPECT_GT(found.search.strategy.micro_batches, 1);
  EXPECT_LT(limits_.back(), limits_.front());
}

TEST_F(MeasuredSearchTest, WhatIsTooLargeByFiguresMayDo) {
  const MeasuredResult found =
      search([](int64_t) { return "data-parallel"; }, false, Termination::Infeasible);
  EXPECT_TRUE(found.fits);
  EXPECT_EQ(found.search.termination, Termination::Feasible);
}

TEST_F(MeasuredSearchTest, SaysWhatIsNeeded) {
  machine_ = cases::machine(2, 1, "1MiB");
  const MeasuredResult found =
      search([](int64_t) { return "data-parallel"; }, true, Termination::Infeasible);
  EXPECT_FALSE(found.fits);
  EXPECT_EQ(found.search.termination, Termination::Infeasible);
}

}  // namespace
}  // namespace windlass
