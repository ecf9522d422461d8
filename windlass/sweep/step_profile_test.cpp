#include "windlass/sweep/step_profile.h"

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/step.h"
#include "windlass/run/made_up_runtime.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// By itself every kernel takes a microsecond, and so does an update.
class EvenRuntime final : public MadeUpRuntime {
 public:
  KernelPrice measure_op(const KernelRun&, int, int) override { return {1000, 64}; }
  Nanoseconds measure_update(const UpdateVariant&, int64_t, int, int) override { return 1000; }
};

class StepProfileTest : public testing::Test {
 protected:
  StepProfileTest() { profile_.reprice(step_.training, tasks_, times_); }

  // Task i takes took(i), after a gap that counts with it.
  template <class Took>
  StepRecord record(const Took& took) const {
    constexpr Nanoseconds kGap = 10;
    StepRecord made;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      made.start.push_back(made.time + kGap);
      made.time += took(i);
      made.end.push_back(made.time);
    }
    return made;
  }

  EvenRuntime runtime_;
  const Machine machine_ = load_machine("1x3090");
  const std::unique_ptr<CostModel> cost_ = analytic_cost_model();
  PreparedStep step_ =
      prepare_step(cases::mlp(8, 3), parse_baseline("single"), machine_, TrainingOptions());
  TaskGraph tasks_ = lower(step_.training, step_.strategy, machine_);
  TaskTimes times_ = price_tasks(tasks_, machine_, *cost_);
  KernelProfile profile_{1, [this]() -> Runtime& { return runtime_; }};
};

// With the prices of a profile, tasks together take as long as those of the faster half of the
// steps, and a kernel what its tasks take on average.
TEST_F(StepProfileTest, StepsTakeWhatTheFasterHalfTook) {
  StepProfile steps(step_.training, tasks_, times_);
  steps.add(record([](size_t i) { return Nanoseconds(2000 + 300 * (i % 5)); }));
  steps.add(record([](size_t i) { return Nanoseconds(9000 + 700 * (i % 3)); }));  // disturbed
  steps.add(record([](size_t i) { return Nanoseconds(2200 + 300 * (i % 5)); }));
  Nanoseconds expected = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) expected += Nanoseconds(2100 + 300 * (i % 5));

  profile_.correct(steps.kernels(profile_), steps.updates());
  TaskTimes corrected = times_;
  profile_.reprice(step_.training, tasks_, corrected);
  Nanoseconds sum = 0;
  for (Nanoseconds duration : corrected.duration) sum += duration;
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(expected),
              static_cast<double>(tasks_.size()));
  EXPECT_EQ(corrected.workspace, times_.workspace);
}

// Tasks that run the same kernel keep one price.
TEST_F(StepProfileTest, OneKernelHasOnePrice) {
  StepProfile steps(step_.training, tasks_, times_);
  steps.add(record([](size_t i) { return Nanoseconds(1000 * (i + 1)); }));
  const TaskKernels kernels(step_.training, tasks_);
  std::map<std::string, std::pair<double, int>> by_key;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (!kernels.has(TaskId(i))) continue;
    auto& [time, count] = by_key[key_of(kernels.run(TaskId(i)))];
    time += 1000.0 * static_cast<double>(i + 1);
    ++count;
  }
  const std::vector<MeasuredKernel> found = steps.kernels(profile_);
  ASSERT_EQ(found.size(), by_key.size());
  bool several = false;
  for (const MeasuredKernel& kernel : found) {
    const auto& [time, count] = by_key.at(kernel.kernel);
    EXPECT_NEAR(static_cast<double>(kernel.time_ns), time / count, 1) << kernel.kernel;
    EXPECT_EQ(kernel.workspace_bytes, 64);
    several |= count > 1;
  }
  EXPECT_TRUE(several);
}

TEST_F(StepProfileTest, UpdatesAreSoManyTimesWhatTheyWere) {
  StepProfile steps(step_.training, tasks_, times_);
  steps.add(record([&](size_t i) {
    const bool update = tasks_.tasks[i].kind == TaskKind::Update;
    return update ? 3 * times_.duration[i] : Nanoseconds(500);
  }));
  EXPECT_NEAR(steps.updates(), 3, 1e-9);
}

}  // namespace
}  // namespace windlass
