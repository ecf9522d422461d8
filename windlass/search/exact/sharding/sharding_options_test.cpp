// What the exact search may choose is lowered to a step that the checker accepts, and that computes
// what the step of one device does.

#include "windlass/search/exact/sharding/sharding_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/model/huggingface/gpt2.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// Longer tables of positions than sequences.
Graph small_gpt2(bool tied) {
  const Gpt2Config config = {.vocabulary = 32,
                             .positions = 24,
                             .hidden = 16,
                             .layers = 1,
                             .heads = 4,
                             .inner = 32,
                             .tied = tied};
  return build_gpt2("gpt2", config, {}, {.batch = 4, .sequence = 16});
}

TEST(ShardingOptions, AreCarriedOutAsOneDeviceWould) {
  const uint64_t count = sampled<uint64_t>(120);
  for (uint64_t seed = 1; seed <= count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const int devices = rng.chance(0.5) ? 4 : 8;
    const Machine machine = cases::machine(devices);
    const TrainingGraph training = differentiate(small_gpt2(rng.chance(0.5)));
    Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
    strategy.groups = {{}};
    for (int d = 0; d < devices; ++d) strategy.groups[0].emplace_back(static_cast<size_t>(d));
    strategy.shardings.clear();
    const auto hints = block_hints(training.graph, training.forward_ops);
    const double split = rng.uniform(0.1, 1);
    for (size_t i = 0; i < training.forward_ops; ++i) {
      const auto options =
          shardings_of(loops_of(training.graph, training.graph.ops[i]), hints[i], devices);
      const auto last = static_cast<int64_t>(options.size()) - 1;
      strategy.ops[i] = static_cast<int32_t>(strategy.shardings.size());
      strategy.shardings.push_back(
          options[static_cast<size_t>(rng.chance(split) ? rng.integer(0, last) : 0)]);
    }
    for (Residency& weight : strategy.weights)
      if (rng.chance(0.3)) weight = {.zero = static_cast<uint8_t>(rng.integer(0, 3))};
    const StepStart start = cases::random_start(training, 1, seed);
    expect_same_end(
        training,
        [&] {
          check_strategy(training, machine, strategy);
          const TaskGraph tasks = lower(training, strategy, machine);
          EXPECT_THAT(check_tasks(training, machine, strategy, tasks), testing::IsEmpty());
          return run_tasks(training, machine, tasks, start);
        },
        run_plainly(training, start));
  }
}

}  // namespace
}  // namespace windlass
