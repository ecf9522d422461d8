// Every model of the zoo under every baseline on four machines: each either simulates or says why
// it is not possible.

#include <string>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/model/zoo.h"
#include "windlass/sim/simulate.h"
#include "windlass/sim/timeline_check.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

constexpr const char* kStrategies[] = {
    "data-parallel",
    "zero:stage=1",
    "zero:stage=2",
    "zero:stage=3",
    "megatron:tp=4",
    "megatron:tp=2,pp=2,recompute=full",
    "megatron:tp=4,sequence-parallel=on,recompute=selective",
    "one-weird-trick",
    "gpipe:stages=4",
    "1f1b:stages=4",
    "recompute-all",
    "recompute-sqrt",
    "offload-all",
    "lru",
    "harmony:mode=pp",
    "harmony:mode=dp",
    "single",
};

// Timelines of larger graphs are not looked at again, to keep the sweep short.
constexpr size_t kLookedAt = 3000;

TEST(SweepSlow, EveryModelUnderEveryBaseline) {
  const auto cost = analytic_cost_model();
  int done = 0, too_large = 0, impossible = 0, no_packs = 0;
  const std::vector<std::string> names = zoo_names();
  const int stride = thorough() ? 1 : 8;
  for (size_t at = 0; at < names.size(); at += static_cast<size_t>(stride)) {
    const std::string& name = names[at];
    ModelOptions options;
    options.batch = 64;
    const Model model = load_model(name, options);
    for (const char* preset : {"4x1080ti", "8x2080ti", "4xv100-16g", "8xa100-80g*8"}) {
      const Machine machine = load_machine(preset);
      for (const char* strategy : kStrategies) {
        SCOPED_TRACE(name + " on " + preset + ", " + strategy);
        try {
          const PreparedStep step =
              prepare_step(model.graph, parse_baseline(strategy), machine, {});
          const TaskGraph tasks = lower(step.training, step.strategy, machine);
          check_task_graph(tasks);
          const TaskTimes times = price_tasks(tasks, machine, *cost);
          Simulator simulator;
          const SimResult& result = simulator.run(tasks, times);
          ASSERT_NE(result.status, SimStatus::Deadlock);
          ++(result.status == SimStatus::Done ? done : too_large);
          if (tasks.size() > kLookedAt) continue;
          const auto complaints = check_timeline(tasks, times, result);
          ASSERT_TRUE(complaints.empty()) << complaints.front();
        } catch (const Error& error) {
          ASSERT_TRUE(error.kind() == ErrorKind::Input || error.kind() == ErrorKind::Unsupported)
              << error.message();
          ASSERT_FALSE(error.message().empty());
          // Packs are neither for several nodes nor for networks whose samples mix.
          ++(std::string(strategy).starts_with("harmony") ? no_packs : impossible);
        }
      }
    }
  }
  // Most fit somewhere; very few are refused.
  EXPECT_GT(done, 3500 / stride);
  EXPECT_GT(too_large, 500 / stride);
  EXPECT_LT(impossible, 100 / stride);
  EXPECT_LT(no_packs, 500 / stride);
}

}  // namespace
}  // namespace windlass
