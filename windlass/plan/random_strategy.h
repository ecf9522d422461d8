// Random legal strategies, for tests.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/strategy/strategy.h"

namespace windlass::cases {

struct RandomOptions {
  bool weights = true;   // other residencies than resident
  bool pipeline = true;  // several stages
  double sharded = 0.5;  // ops that change the sharding of the one before
  bool compress = true;
  bool in_turn = false;  // copies may take turns with kernels
  bool blocks = false;   // loops may be split in blocks
  bool unequal = false;  // parts may be of different sizes
  bool mixed = false;    // groups of any devices and sizes, stages of any ops, several on a group
};

// Sizes of so many parts, small ones mostly; none if they come out equal.
inline std::vector<int32_t> random_sizes(int64_t parts, Rng& rng) {
  std::vector<int32_t> sizes;
  const int64_t most = rng.chance(0.2) ? 9 : 3;
  for (int64_t p = 0; p < parts; ++p) sizes.push_back(static_cast<int32_t>(rng.integer(1, most)));
  return reduced_sizes(std::move(sizes));
}

inline bool splits(const Op& op, const LoopNest& nest, const Sharding& sharding, int64_t members) {
  try {
    check_sharding(op, nest, sharding, static_cast<size_t>(members));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A sharding over `members`: digits of random loops, copies where a loop cannot be cut; also not in
// `smaller`, the loops of smaller micro-batches, if there are some.
inline Sharding random_sharding(const Op& op, const LoopNest& nest, int64_t members, Rng& rng,
                                const RandomOptions& options = {},
                                const LoopNest* smaller = nullptr) {
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
      if (options.blocks && rng.chance(0.2))
        trial.splits.back().blocks = static_cast<int32_t>(rng.integer(2, 3));
      if (options.unequal && trial.splits.back().loop >= 0 && rng.chance(0.6))
        trial.splits.back().sizes = random_sizes(split.parts, rng);
      if (!splits(op, nest, trial, size_of(trial)) ||
          (smaller != nullptr && !splits(op, *smaller, trial, size_of(trial))))
        continue;
      split = trial.splits.back();
      break;
    }
    sharding.splits.push_back(split);
  }
  return sharding;
}

// Groups of equal size with a stage each, in order.
inline void equal_groups(const TrainingGraph& training, const Machine& machine, Rng& rng,
                         bool pipeline, Strategy& strategy) {
  const auto devices = static_cast<int64_t>(machine.devices.size());
  int64_t groups = pipeline ? rng.integer(1, devices) : 1;
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
    strategy.stages.push_back({at(g), at(g + 1), static_cast<int32_t>(g)});
  }
  if (groups > 1)
    strategy.schedule = rng.chance(0.5) ? ScheduleKind::GPipe : ScheduleKind::OneFOneB;
}

// Groups of any devices and sizes, which take turns in one or two rounds of stages of any length.
inline void mixed_groups(const TrainingGraph& training, const Machine& machine, Rng& rng,
                         Strategy& strategy) {
  std::vector<DeviceId> devices;
  for (size_t d = 0; d < machine.devices.size(); ++d) devices.emplace_back(d);
  for (size_t d = devices.size(); d > 1 && rng.chance(0.7); --d)
    std::swap(devices[d - 1],
              devices[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(d) - 1))]);
  strategy.groups.assign(1, {});
  for (DeviceId device : devices) {
    const bool more = strategy.groups.size() < training.forward_ops;  // each has a stage
    if (!strategy.groups.back().empty() && rng.chance(0.3) && more) strategy.groups.emplace_back();
    strategy.groups.back().push_back(device);
  }
  const size_t groups = strategy.groups.size();
  const size_t rounds = rng.chance(0.3) && 2 * groups <= training.forward_ops ? 2 : 1;
  std::set<size_t> ends = {training.forward_ops};
  while (ends.size() < groups * rounds)
    ends.insert(
        static_cast<size_t>(rng.integer(1, static_cast<int64_t>(training.forward_ops) - 1)));
  strategy.stages.clear();
  size_t first = 0;
  for (size_t end : ends) {
    const auto group = static_cast<int32_t>(strategy.stages.size() % groups);
    strategy.stages.push_back({first, end, group});
    first = end;
  }
  if (strategy.stages.size() == 1) return;
  strategy.schedule = rng.chance(0.5) ? ScheduleKind::GPipe : ScheduleKind::OneFOneB;
  if (rounds > 1 && strategy.schedule == ScheduleKind::OneFOneB)
    strategy.micro_batches = static_cast<int64_t>(groups) * rng.integer(1, 2);
}

inline Strategy random_strategy(const TrainingGraph& training, const Machine& machine, Rng& rng,
                                const RandomOptions& options = {}) {
  Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
  strategy.name = "random";
  strategy.micro_batches = rng.integer(1, 4);
  strategy.bucket = Bytes(rng.integer(0, 1) == 0 ? 4096 : 25 << 20);
  strategy.prefetch = static_cast<int32_t>(rng.integer(0, 3));
  strategy.in_turn = options.in_turn && rng.chance(0.2);
  if (options.mixed)
    mixed_groups(training, machine, rng, strategy);
  else
    equal_groups(training, machine, rng, options.pipeline, strategy);
  if (training.unequal) {
    strategy.micro_batches = training.unequal->count;
    const auto groups = static_cast<int64_t>(strategy.groups.size());
    // Stages that take turns want as many micro-batches as groups, or a multiple.
    if (strategy.stages.size() > strategy.groups.size() && strategy.micro_batches % groups != 0)
      strategy.schedule = ScheduleKind::GPipe;
  }
  const std::vector<int32_t> stages = stage_of_ops(strategy, training.forward_ops);
  strategy.shardings.clear();
  std::map<Sharding, int32_t> known;
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const LoopNest nest = loops_of(training.graph, op);
    const Stage& stage = strategy.stages[static_cast<size_t>(stages[i])];
    const size_t members = strategy.groups[static_cast<size_t>(stage.group)].size();
    std::optional<LoopNest> smaller;
    if (training.unequal) {
      const Graph& graph = training.unequal->smaller.graph;
      smaller = loops_of(graph, graph.ops[i]);
    }
    Sharding sharding = random_sharding(op, nest, static_cast<int64_t>(members), rng, options,
                                        smaller ? &*smaller : nullptr);
    if (i > 0 && !rng.chance(options.sharded)) {
      const Sharding& last = strategy.shardings[static_cast<size_t>(strategy.ops[i - 1])];
      const auto size = static_cast<int64_t>(members);
      if (splits(op, nest, last, size) && (!smaller || splits(op, *smaller, last, size)))
        sharding = last;
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
