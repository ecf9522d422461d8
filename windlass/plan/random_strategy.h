// Random legal strategies, for tests.
#pragma once

#include <algorithm>
#include <map>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/strategy/strategy.h"

namespace windlass::cases {

// A sharding over `members`: digits of random loops, copies where a loop cannot be cut.
inline Sharding random_sharding(const Op& op, const LoopNest& nest, int64_t members, Rng& rng) {
  Sharding sharding;
  for (int64_t left = members; left > 1;) {
    int64_t parts = rng.integer(2, left);
    while (left % parts != 0) ++parts;
    left /= parts;
    Split split{-1, static_cast<int32_t>(parts)};
    for (int tries = 0; tries < 4; ++tries) {
      Sharding trial = sharding;
      trial.splits.push_back(
          {static_cast<int32_t>(rng.integer(-1, static_cast<int64_t>(nest.loops.size()) - 1)),
           split.parts});
      try {
        check_sharding(op, nest, trial, static_cast<size_t>(size_of(trial)));
      } catch (const Error&) {
        continue;
      }
      split = trial.splits.back();
      break;
    }
    sharding.splits.push_back(split);
  }
  return sharding;
}

struct RandomOptions {
  bool weights = true;   // other residencies than resident
  bool pipeline = true;  // several stages
  double sharded = 0.5;  // ops that change the sharding of the one before
  bool compress = true;
  bool in_turn = false;  // copies may take turns with kernels
};

inline Strategy random_strategy(const TrainingGraph& training, const Machine& machine, Rng& rng,
                                const RandomOptions& options = {}) {
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.name = "random";
  strategy.micro_batches = rng.integer(1, 4);
  strategy.bucket = Bytes(rng.integer(0, 1) == 0 ? 4096 : 25 << 20);
  strategy.prefetch = static_cast<int32_t>(rng.integer(0, 3));
  strategy.in_turn = options.in_turn && rng.chance(0.2);
  const auto devices = static_cast<int64_t>(machine.devices.size());
  int64_t groups = options.pipeline ? rng.integer(1, devices) : 1;
  while (devices % groups != 0) --groups;
  groups = std::min<int64_t>(groups, static_cast<int64_t>(training.forward_ops));
  strategy.groups.assign(static_cast<size_t>(groups), {});
  const int64_t members = devices / groups;
  for (int64_t d = 0; d < groups * members; ++d)
    strategy.groups[static_cast<size_t>(d / members)].push_back(DeviceId(static_cast<size_t>(d)));
  strategy.stages.clear();
  for (int64_t g = 0; g < groups; ++g) {
    const auto at = [&](int64_t k) {
      return training.forward_ops * static_cast<size_t>(k) / static_cast<size_t>(groups);
    };
    strategy.stages.push_back({at(g), at(g + 1), static_cast<int32_t>(g), static_cast<int32_t>(g)});
  }
  if (groups > 1)
    strategy.schedule = rng.chance(0.5) ? ScheduleKind::GPipe : ScheduleKind::OneFOneB;
  strategy.shardings.clear();
  std::map<Sharding, int32_t> known;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const LoopNest nest = loops_of(training.graph, op);
    Sharding sharding = random_sharding(op, nest, members, rng);
    if (i > 0 && !rng.chance(options.sharded)) {
      const Sharding& last = strategy.shardings[static_cast<size_t>(strategy.ops[i - 1])];
      try {
        check_sharding(op, nest, last, static_cast<size_t>(members));
        sharding = last;
      } catch (const Error&) {
      }
    }
    const auto [entry, fresh] =
        known.try_emplace(sharding, static_cast<int32_t>(strategy.shardings.size()));
    if (fresh) strategy.shardings.push_back(sharding);
    strategy.ops[i] = entry->second;
  }
  for (size_t s = 0; s < strategy.saved.size(); ++s) {
    if (!training.saved[s].producer.valid()) continue;
    strategy.saved[s] = static_cast<MemoryAction>(rng.integer(0, options.compress ? 6 : 3));
    if (compressed_bits(strategy.saved[s]) > 0 &&
        !is_float(training.graph[training.saved[s].tensor].type.dtype))
      strategy.saved[s] = MemoryAction::Keep;
  }
  for (Residency& weight : strategy.weights)
    if (options.weights)
      weight = {.zero = static_cast<uint8_t>(rng.integer(0, 3)),
                .host = rng.chance(0.3),
                .host_update = rng.chance(0.3)};
  return strategy;
}

}  // namespace windlass::cases
