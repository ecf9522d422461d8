#include "windlass/search/book/strategy_hash.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"

namespace windlass {
namespace {

// Every decision counts, and how shardings are numbered does not.
TEST(StrategyHash, EveryDecisionCounts) {
  const TrainingGraph training = differentiate(cases::transformer(8, 2, false));
  const Machine machine = cases::machine(4);
  const std::vector<std::function<void(Strategy&)>> changes = {
      [](Strategy& s) { ++s.micro_batches; },
      [](Strategy& s) {
        s.schedule =
            s.schedule == ScheduleKind::GPipe ? ScheduleKind::OneFOneB : ScheduleKind::GPipe;
      },
      [](Strategy& s) { s.groups[0].push_back(DeviceId(size_t{9})); },
      [](Strategy& s) { ++s.stages[0].last; },
      [](Strategy& s) {
        s.shardings[static_cast<size_t>(s.ops[0])].splits.push_back({0, 2});
      },
      [](Strategy& s) {
        s.shardings[static_cast<size_t>(s.ops[0])].splits.push_back({0, 2, 2});
      },
      [](Strategy& s) {
        s.saved[0] = s.saved[0] == MemoryAction::Keep ? MemoryAction::Offload : MemoryAction::Keep;
      },
      [](Strategy& s) { s.weights[0].host = !s.weights[0].host; },
      [](Strategy& s) { s.weights[0].host_update = !s.weights[0].host_update; },
      [](Strategy& s) { s.weights[0].zero = s.weights[0].zero == 0 ? 1 : 0; },
      [](Strategy& s) { s.bucket += Bytes(1); },
      [](Strategy& s) { ++s.prefetch; },
      [](Strategy& s) { s.in_turn = !s.in_turn; },
      [](Strategy& s) { s.memory_cap += Bytes(1); },
      [](Strategy& s) { s.virtual_memory = !s.virtual_memory; },
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const Strategy strategy = cases::random_strategy(training, machine, rng, {});
    const uint64_t hash = strategy_hash(strategy);
    for (size_t i = 0; i < changes.size(); ++i) {
      Strategy changed = strategy;
      changes[i](changed);
      EXPECT_NE(strategy_hash(changed), hash) << "seed " << seed << ", change " << i;
    }
    Strategy renumbered = strategy;
    renumbered.shardings.insert(renumbered.shardings.begin(), strategy.shardings[0]);
    for (int32_t& op : renumbered.ops) ++op;
    EXPECT_EQ(strategy_hash(renumbered), hash) << "seed " << seed;
  }
}

}  // namespace
}  // namespace windlass
