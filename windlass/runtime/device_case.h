// A small network on several devices of this host. For tests.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/strategy/baselines.h"

namespace windlass::testing_runs {

// A small network under a named strategy on several devices.
struct DeviceCase {
  DeviceCase(const std::string& strategy, int devices)
      : machine(cases::machine(devices)),
        network(cases::mlp(8, 3)),
        prepared(prepare_step(network, parse_baseline(strategy), machine, {})),
        step(simulate_step(prepared.training, prepared.strategy, machine, *analytic_cost_model())),
        start(cases::random_start(prepared.training,
                                  static_cast<int32_t>(prepared.strategy.micro_batches), 1)) {}

  void run(const RunSettings& settings) const { run(settings, start); }
  void run(const RunSettings& settings, const StepStart& from) const {
    run_steps(prepared.training, machine, step.tasks, step.times, step.result, from,
              find_batch(network), settings);
  }

  // The error that a run ends with.
  Error error_of(const RunSettings& settings) const { return error_of(settings, start); }
  Error error_of(const RunSettings& settings, const StepStart& from) const {
    try {
      run(settings, from);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return Error(ErrorKind::Internal, "");
  }

  // The last task of a kind.
  int32_t task_of(TaskKind kind) const {
    for (size_t i = step.tasks.size(); i-- > 0;)
      if (step.tasks.tasks[i].kind == kind) return static_cast<int32_t>(i);
    ADD_FAILURE() << "no such task";
    return -1;
  }

  Machine machine;
  Graph network;
  PreparedStep prepared;
  SimulatedStep step;
  StepStart start;
};

}  // namespace windlass::testing_runs
