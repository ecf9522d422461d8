#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/search/book/evaluate.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

// No strategy is faster, and where one device does everything the bound is not far below.
TEST(WorkBound, NoStrategyIsFaster) {
  const char* const models[] = {"gpt2:layers=3", "resnet-18",   "vgg-11",        "mobilenet-v2",
                                "nmt",           "rnnlm",       "bert:layers=3", "swin-t",
                                "unet",          "densenet-121"};
  const char* const strategies[] = {"single",
                                    "data-parallel",
                                    "zero:stage=3",
                                    "recompute-all",
                                    "megatron:tp=4",
                                    "megatron:tp=2,dp=2,micro-batches=2",
                                    "1f1b:stages=4,micro-batches=8",
                                    "one-weird-trick"};
  const auto cost = analytic_cost_model();
  int seen = 0;
  for (const char* machine_name : {"4x1080ti", "8xa100-80g", "laptop"})
    for (const char* model : models) {
      const Machine machine = load_machine(machine_name);
      const Graph network = load_model(model, {.batch = 32}).graph;
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const double bound = work_bound(problem).value;
      ASSERT_GT(bound, 0);
      for (const char* name : strategies) {
        try {
          const PreparedStep step = prepare_step(network, parse_baseline(name), machine, {});
          Evaluator evaluator(problem, step.training);
          const double time =
              step_time(problem, evaluator.evaluate_unlimited(step.strategy).time).value;
          EXPECT_LE(bound, time) << model << " " << name << " " << machine_name;
          const bool alone = machine.devices.size() == 1 && std::string_view(name) == "single";
          EXPECT_GT(bound, alone ? 0.4 * time : 0) << model;
          ++seen;
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::Input) throw;
        }
      }
    }
  EXPECT_GT(seen, 80);
}

// Half of the devices at half the speed: three quarters of the work of a machine without them.
TEST(WorkBound, SlowDevicesCountForLess) {
  const auto cost = analytic_cost_model();
  const Graph network = load_model("gpt2:layers=4", {.batch = 32}).graph;
  const Machine fast = load_machine("4x3090");
  Machine mixed = fast;
  DeviceType slow = fast.device_types[0];
  for (auto& [precision, peak] : slow.peak) peak.value /= 2;
  slow.memory_bandwidth.value /= 2;
  mixed.device_types.push_back(slow);
  mixed.devices[1].type = mixed.devices[3].type = 1;
  const auto bound = [&](const Machine& machine) {
    return work_bound({.network = network, .machine = machine, .cost = *cost}).value;
  };
  EXPECT_NEAR(bound(mixed) / bound(fast), 4.0 / 3, 0.05);
  // Replicas that hardly wait for each other are not much slower than the bound.
  const Problem problem = {.network = network, .machine = fast, .cost = *cost};
  const PreparedStep step = prepare_step(network, parse_baseline("data-parallel"), fast, {});
  Evaluator evaluator(problem, step.training);
  const Nanoseconds time = evaluator.evaluate_unlimited(step.strategy).time;
  EXPECT_GT(bound(fast), 0.5 * step_time(problem, time).value);
}

}  // namespace
}  // namespace windlass
