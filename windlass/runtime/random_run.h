// A random step with what is needed to run it. For tests.
#pragma once

#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/step_runner.h"

namespace windlass::testing_runs {

struct RandomRun {
  explicit RandomRun(uint64_t seed) : step(cases::random_step(seed)) {
    step.begin(seed);
    simulated =
        simulate_step(step.training, step.strategy, step.machine, *analytic_cost_model(), {});
    batch = batch_of_network(step.training);
  }
  int32_t devices() const { return static_cast<int32_t>(step.machine.devices.size()); }
  RunEnd run(const RunSettings& settings) const {
    return run_steps(step.training, step.machine, simulated.tasks, simulated.times,
                     simulated.result, step.start, batch, settings);
  }

  cases::RandomStep step;
  SimulatedStep simulated;
  BatchAxes batch;
};

}  // namespace windlass::testing_runs
