#include "windlass/run/batch_lines.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/step.h"
#include "windlass/run/made_up_runtime.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// Kernels take as long as they have elements, and have half as much workspace.
class AffineRuntime final : public MadeUpRuntime {
 public:
  KernelPrice measure_op(const KernelRun& run, int, int) override {
    ++measured;
    int64_t elements = 0;
    const KernelOperands operands = operands_of(run);
    for (const auto* list : {&operands.inputs, &operands.results})
      for (const TensorType& type : *list)
        if (type.present()) elements += element_count(type.shape);
    return {100 + 8 * elements, 4 * elements};
  }
  int measured = 0;
};

PreparedStep step_of(int64_t batch, const char* strategy) {
  return prepare_step(cases::mlp(batch, 3), parse_baseline(strategy), load_machine("1x3090"), {});
}

// Where every price is affine in the batch, lines through two batches are what measuring the batch
// itself would give, for every way to save memory; and nothing but the two is measured.
TEST(BatchLines, AreWhatWouldBeMeasured) {
  const Machine machine = load_machine("1x3090");
  const auto cost = analytic_cost_model();
  for (const char* strategy : {"single", "single:recompute=full", "single:offload=on",
                               "single:compress=4", "single:host-update=on"}) {
    SCOPED_TRACE(strategy);
    AffineRuntime runtime;
    const auto open = [&]() -> Runtime& { return runtime; };
    KernelProfile by_lines(1, open), direct(1, open);
    const PreparedStep small = step_of(2, "single"), large = step_of(32, "single");
    BatchLines lines(by_lines, small.training, large.training);
    for (int64_t batch : {1, 2, 6, 32, 64}) {
      const PreparedStep step = step_of(batch, strategy);
      const TaskGraph tasks = lower(step.training, step.strategy, machine);
      TaskTimes expected = price_tasks(tasks, machine, *cost), found = expected;
      direct.reprice(step.training, tasks, expected);
      const int before = runtime.measured;
      lines.reprice(step.training, tasks, found);
      if (batch > 1) {
        EXPECT_EQ(runtime.measured, before) << batch;
      }
      EXPECT_EQ(found.duration, expected.duration) << batch;
      EXPECT_EQ(found.workspace, expected.workspace) << batch;
    }
    EXPECT_DOUBLE_EQ(lines.place(small.training), 0);
    EXPECT_DOUBLE_EQ(lines.place(large.training), 1);
    EXPECT_DOUBLE_EQ(lines.place(step_of(17, "single").training), 0.5);
  }
}

// The larger one of something fixed and something that grows with the batch.
class KinkedRuntime final : public MadeUpRuntime {
 public:
  static int64_t workspace(int64_t elements) { return std::max<int64_t>(4000, 8 * elements); }
  KernelPrice measure_op(const KernelRun& run, int, int) override {
    int64_t elements = 0;
    for (const TensorType& type : operands_of(run).results)
      if (type.present()) elements += element_count(type.shape);
    return {100, workspace(elements)};
  }
};

// What the cost model says of workspace is taken where it is right at both batches, and only there.
TEST(BatchLines, WorkspaceThatTheCostModelKnows) {
  const Machine machine = load_machine("1x3090");
  const auto cost = analytic_cost_model();
  KinkedRuntime runtime;
  const auto open = [&]() -> Runtime& { return runtime; };
  for (const bool right : {true, false}) {
    KernelProfile by_lines(1, open), direct(1, open);
    const PreparedStep small = step_of(2, "single"), large = step_of(32, "single");
    BatchLines lines(by_lines, small.training, large.training);
    for (int64_t batch : {2, 32, 6, 64}) {
      SCOPED_TRACE(batch);
      const PreparedStep step = step_of(batch, "single");
      const TaskGraph tasks = lower(step.training, step.strategy, machine);
      TaskTimes expected = price_tasks(tasks, machine, *cost);
      direct.reprice(step.training, tasks, expected);
      TaskTimes found = expected;
      if (!right)
        for (int64_t& workspace : found.workspace) workspace += 512;
      lines.reprice(step.training, tasks, found);
      const bool measured = batch == 2 || batch == 32;
      EXPECT_EQ(found.workspace == expected.workspace, right || measured);
    }
  }
}

TEST(BatchLines, AreOfOneNetwork) {
  KernelProfile profile;
  const PreparedStep small = step_of(2, "single"), large = step_of(32, "single");
  EXPECT_THROW(BatchLines(profile, small.training, small.training), Error);
  const PreparedStep other =
      prepare_step(cases::mlp(4, 2), parse_baseline("single"), load_machine("1x3090"), {});
  EXPECT_THROW(BatchLines(profile, small.training, other.training), Error);
}

}  // namespace
}  // namespace windlass
