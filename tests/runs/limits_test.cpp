// Plans for a limit, found and then run for real.

#include <cstring>

#include <gtest/gtest.h>

#include "windlass/plan/cases.h"
#include "windlass/runtime/run_testing.h"
#include "windlass/search/search.h"

namespace windlass {
namespace {

using testing_runs::TestRun;

// What is found for a limit runs inside it, down to the least; below that there is nothing.
TEST(Limits, PlansRunInsideThem) {
  const Graph network = cases::transformer(4, 3, false);
  const auto cost = analytic_cost_model();
  const auto search = [&](int64_t limit) {
    const Machine machine = testing_runs::host(Bytes(limit));
    return search_one_device({.network = network,
                              .machine = machine,
                              .training = {},
                              .cost = *cost,
                              .reprice = testing_runs::reprice});
  };
  const SearchResult none = search(4096);
  ASSERT_EQ(none.termination, Termination::Infeasible);
  ASSERT_TRUE(none.least_limit.has_value());
  const int64_t least = none.least_limit->value;
  EXPECT_EQ(search(least - 1).termination, Termination::Infeasible);
  TestRun keep(network, "single");
  keep.begin();
  const int64_t most = keep.predicted().result.peaks[0].bytes;
  for (const int64_t limit : {least, least + (most - least) / 4, most / 2, most}) {
    if (limit < least) continue;
    const Machine machine = testing_runs::host(Bytes(limit));
    const SearchResult found = search(limit);
    ASSERT_NE(found.termination, Termination::Infeasible) << limit;
    const SimulatedStep step =
        simulate_step(found.training, found.strategy, machine, *cost, {}, testing_runs::reprice);
    ASSERT_EQ(step.result.status, SimStatus::Done) << limit;
    Executor executor(found.training, step.tasks, step.times, step.result, machine);
    StepRequest request;
    request.load = [](TensorId, int32_t, std::span<std::byte> out) {
      std::memset(out.data(), 0, out.size());
    };
    request.mean_counts = load_mean_counts(graphs_of(found.training), find_batch(network),
                                           found.strategy.micro_batches, request.load);
    for (int i = 0; i < 3; ++i) {
      const StepOutcome outcome = executor.run(request);
      EXPECT_LE(outcome.peaks[0], limit);
      EXPECT_LE(outcome.peaks[0], step.result.peaks[0].bytes);
    }
  }
}

}  // namespace
}  // namespace windlass
