// Every op kind under every sharding over 2, 3 and 4 members, in equal and in unequal parts,
// carried out by the slow executor, against the op that is not split.

#include <optional>

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/plan/check.h"
#include "windlass/plan/every_sharding.h"
#include "windlass/plan/same_step.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

void run_case(const reference::OpCase& c, const reference::OpNetworkOptions& options,
              size_t& runs) {
  std::optional<StepEnd> expected;
  cases::for_every_sharding(
      c,
      [&](const TrainingGraph& training, const StepStart& start, const Machine& machine,
          const Strategy& strategy, const std::string& what) {
        if (testing::Test::HasFatalFailure()) return;
        SCOPED_TRACE(what);
        if (!expected) expected = run_plainly(training, start);
        const TaskGraph tasks = lower(training, strategy, machine);
        const auto findings = check_tasks(training, machine, strategy, tasks);
        ASSERT_TRUE(findings.empty()) << findings.front();
        expect_same_end(
            training, [&] { return run_tasks(training, machine, tasks, start); }, *expected);
        ++runs;
      },
      options);
}

void run_cases(const reference::OpNetworkOptions& options) {
  size_t runs = 0, number = 0;
  for (uint64_t seed : {7, 8}) {
    for (const reference::OpCase& c : reference::op_cases(seed)) {
      if (hurried() && number++ % 4 != 0) continue;
      SCOPED_TRACE(c.name);
      run_case(c, options, runs);
    }
    if (hurried()) break;
  }
  EXPECT_GT(runs, 100U);
}

TEST(RunEveryOp, UnderEverySharding) { run_cases({}); }

// Weights are at home where the op wants them.
TEST(RunEveryOp, AsTheFirstReaderOfWeights) { run_cases({.beside = false}); }

}  // namespace
}  // namespace windlass
