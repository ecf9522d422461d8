#include "windlass/run/step_calibration.h"

#include <gtest/gtest.h>

#include "windlass/cost/calibrated.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/step.h"
#include "windlass/sim/simulate.h"

namespace windlass {
namespace {

// Kernels that take 3 times what the model says, products 5 times: a step that is priced by the
// calibration takes what was measured.
TEST(StepCalibration, PricesWhatWasMeasured) {
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const TrainingGraph training = differentiate(cases::transformer(8, 2, false));
  const Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  const SimulatedStep plain = simulate_step(training, strategy, machine, *cost);
  TaskTimes measured = plain.times;
  for (size_t i = 0; i < plain.tasks.size(); ++i) {
    const Task& task = plain.tasks.tasks[i];
    if (moves(task.kind)) continue;
    const Work& work = plain.tasks.works[static_cast<size_t>(task.price)];
    const bool product = calibrated_family(work) == family_name(OpFamily::Contraction);
    measured.duration[i] *= product ? 5 : 3;
    measured.workspace[i] += 1000;
  }
  StepCalibration seen(machine, *cost);
  seen.add(plain.tasks, measured);

  const Machine calibrated = seen.apply(machine);
  const TaskTimes again = price_tasks(plain.tasks, calibrated, *cost);
  for (size_t i = 0; i < plain.tasks.size(); ++i) {
    const Task& task = plain.tasks.tasks[i];
    if (moves(task.kind)) continue;
    const Work& work = plain.tasks.works[static_cast<size_t>(task.price)];
    if (work.kernels.empty()) continue;
    // Rounded to nanoseconds before and after.
    EXPECT_NEAR(static_cast<double>(again.duration[i]), static_cast<double>(measured.duration[i]),
                0.01 * static_cast<double>(measured.duration[i]) + 4);
  }
  // The largest share of a kind counts.
  for (size_t i = 0; i < plain.tasks.size(); ++i) {
    const Task& task = plain.tasks.tasks[i];
    if (moves(task.kind) || plain.tasks.works[static_cast<size_t>(task.price)].kernels.empty())
      continue;
    EXPECT_GE(again.workspace[i], measured.workspace[i]);
  }
}

// A kernel of a few numbers holds an allocation beside them; a large one of its kind holds no
// hundreds of times its operands for that.
TEST(StepCalibration, AFewNumbersSayLittleOfMany) {
  const auto work_of = [](int64_t bytes) {
    Work work;
    Kernel& kernel = work.kernels.emplace_back();
    kernel.family = OpFamily::Elementwise;
    kernel.read = kernel.written = Bytes(bytes);
    return work;
  };
  const Work few = work_of(4), many = work_of(1 << 20);
  Calibration calibration;
  calibration.workspace[calibrated_family(few)] =
      512.0 / static_cast<double>(largest_operands(few).value);
  EXPECT_EQ(calibrated_workspace(few, calibration), Bytes(512));
  EXPECT_LE(*calibrated_workspace(many, calibration), largest_operands(many));
}

}  // namespace
}  // namespace windlass
