// Prices of graphs for several devices: which kernels are measured for them, and that those of
// every op kind can be.

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/reference/op_networks.h"
#include "windlass/plan/cases.h"
#include "windlass/run/made_up_runtime.h"
#include "windlass/run/profile.h"
#include "windlass/runtime/measure.h"
#include "windlass/runtime/run_testing.h"
#include "windlass/strategy/strategy.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// Measures nothing, but notes what it is asked for.
class NotingRuntime final : public MadeUpRuntime {
 public:
  KernelPrice measure_op(const KernelRun& run, int, int devices) override {
    keys.push_back(key_of(run));
    most_devices = std::max(most_devices, devices);
    return {static_cast<Nanoseconds>(1000 + keys.size()), 64};
  }
  std::vector<std::string> keys;
  int most_devices = 0;
};

// All ops split over the members along `loop` of each, where it can be, and otherwise copied.
struct SplitStep {
  TrainingGraph training;
  Strategy strategy;
  TaskGraph tasks;

  SplitStep(const Graph& network, int32_t members, int32_t loop)
      : training(differentiate(network, {.optimizer = OptimizerKind::Adam})),
        strategy(plain_strategy(training, DeviceId(size_t{0}))) {
    for (int32_t d = 1; d < members; ++d)
      strategy.groups[0].push_back(DeviceId(static_cast<size_t>(d)));
    strategy.shardings = {{{{-1, members}}}, {{{loop, members}}}};
    for (size_t i = 0; loop >= 0 && i < training.forward_ops; ++i) {
      const Op& op = training.graph.ops[i];
      const LoopNest nest = loops_of(training.graph, op);
      try {
        if (loop < static_cast<int32_t>(nest.loops.size())) {
          check_sharding(op, nest, strategy.shardings[1], static_cast<size_t>(members));
          strategy.ops[i] = 1;
        }
      } catch (const Error&) {
      }
    }
    tasks = lower(training, strategy, cases::machine(std::max(1, members)));
  }

  TaskTimes price(KernelProfile& profile) const {
    TaskTimes times;
    times.duration.assign(tasks.size(), 1);
    times.workspace.assign(tasks.size(), 0);
    profile.reprice(training, tasks, times);
    return times;
  }
};

// Copies of whole ops are the ops of one device, and are named alike.
TEST(ProfilePieces, WholeOpsKeepTheirNames) {
  NotingRuntime alone, copies;
  KernelProfile one(1, [&]() -> Runtime& { return alone; });
  KernelProfile two(1, 2, [&]() -> Runtime& { return copies; });
  SplitStep(cases::cnn(8, true), 1, -1).price(one);
  SplitStep(cases::cnn(8, true), 2, -1).price(two);
  EXPECT_EQ(std::set<std::string>(alone.keys.begin(), alone.keys.end()),
            std::set<std::string>(copies.keys.begin(), copies.keys.end()));
  EXPECT_EQ(alone.most_devices, 1);
  EXPECT_EQ(copies.most_devices, 2);
}

// A batch of 8 over 2 devices is the kernels of a batch of 4; batch norm begins and ends.
TEST(ProfilePieces, PiecesAreNamedByTheirSizes) {
  NotingRuntime noted;
  KernelProfile profile(1, 2, [&]() -> Runtime& { return noted; });
  const SplitStep step(cases::cnn(8, true), 2, 0);
  const TaskTimes times = step.price(profile);
  const auto count = [&](std::string_view kind, std::string_view part) {
    return std::ranges::count_if(noted.keys, [&](const std::string& key) {
      return key.starts_with(kind) && key.find(part) != std::string::npos;
    });
  };
  EXPECT_GT(count("Conv ", "[4, "), 0);
  EXPECT_EQ(count("Conv ", "[8, "), 0);
  EXPECT_GT(count("BatchNorm 0", " begins"), 0);
  EXPECT_GT(count("BatchNorm 1", " ends"), 0);
  EXPECT_EQ(std::set<std::string>(noted.keys.begin(), noted.keys.end()).size(), noted.keys.size())
      << "a kernel was measured twice";
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    const Task& task = step.tasks.tasks[i];
    if (!task.op.valid() || moves(task.kind)) continue;
    EXPECT_GT(times.duration[i], 1000) << i;
    EXPECT_EQ(times.workspace[i], 64) << i;
  }
  const size_t known = profile.kernels();
  const auto used = profile.used_by(step.training, step.tasks);
  EXPECT_EQ(profile.kernels(), known);
  KernelProfile fresh(1, 2, [&]() -> Runtime& { throw Error(ErrorKind::Internal, "measured"); });
  fresh.know(used);
  EXPECT_EQ(step.price(fresh).duration, times.duration);
}

// Who has a share of a weight updates it alone.
TEST(ProfilePieces, SharesOfUpdatesCostLess) {
  NotingRuntime noted;
  KernelProfile profile(1, [&]() -> Runtime& { return noted; });
  const auto update_time = [&](int32_t members, int32_t loop) {
    const SplitStep step(cases::mlp(8, 3), members, loop);
    const TaskTimes times = step.price(profile);
    Nanoseconds total = 0;
    for (size_t i = 0; i < step.tasks.size(); ++i)
      if (step.tasks.tasks[i].kind == TaskKind::Update) total += times.duration[i];
    return total;
  };
  EXPECT_EQ(update_time(2, -1), update_time(1, -1));
  EXPECT_LT(update_time(2, 1), update_time(1, -1));  // output features
}

// Of queries that see only what comes before them, the last see most.
TEST(ProfilePieces, AttentionIsPricedByWhoSeesMost) {
  NotingRuntime noted;
  KernelProfile profile(1, 2, [&]() -> Runtime& { return noted; });
  const SplitStep step(cases::transformer(8, 1), 2, 2);
  step.price(profile);
  const auto sees = [](std::string_view queries) {
    return [queries](const std::string& key) {
      return key.starts_with("Attention") && key.find(queries) != std::string::npos;
    };
  };
  EXPECT_GT(std::ranges::count_if(noted.keys, sees("Attention")), 0);
  EXPECT_EQ(std::ranges::count_if(noted.keys, sees("queries 0-")), 0);
}

// Operands can be made up for every piece.
TEST(ProfilePieces, EveryOpCanBeMeasured) {
  KernelProfile profile(1, linked_runtime);
  size_t number = 0;
  for (const reference::OpCase& c : reference::op_cases(7)) {
    if (hurried() && number++ % 5 != 0) continue;
    SCOPED_TRACE(c.name);
    const reference::OpNetwork network = network_around(c);
    if (parameter_count(network.graph) == 0) continue;
    for (int32_t loop = 0; loop < 6; ++loop) {
      try {
        const SplitStep step(network.graph, 2, loop);
        const TaskTimes times = step.price(profile);
        const TaskKernels kernels(step.training, step.tasks);
        for (size_t i = 0; i < step.tasks.size(); ++i) {
          if (!kernels.has(TaskId(i))) continue;
          ASSERT_GT(times.duration[i], 0);
        }
      } catch (const Error& error) {
        FAIL() << error.what();
      }
    }
  }
  EXPECT_GT(profile.kernels(), hurried() ? 50U : 300U);
}

// On several devices at once, and one that cannot keeps nobody waiting.
TEST(ProfilePieces, DevicesMeasureTogether) {
  const SplitStep step(cases::mlp(8, 3), 2, 0);
  const TaskKernels kernels(step.training, step.tasks);
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    if (!kernels.has(TaskId(i))) continue;
    EXPECT_GT(measure_op(kernels.run(TaskId(i)), 1, 4).time, 0);
  }
  EXPECT_GT(measure_update({}, 1000, 1, 3), 0);
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    if (!kernels.has(TaskId(i))) continue;
    KernelRun broken = kernels.run(TaskId(i));
    broken.begins = true;
    EXPECT_THROW(measure_op(broken, 1, 2), Error);
    break;
  }
}

}  // namespace
}  // namespace windlass
