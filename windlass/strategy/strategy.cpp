#include "windlass/strategy/strategy.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "windlass/base/error.h"
#include "windlass/graph/network_layers.h"
#include "windlass/graph/samples.h"
#include "windlass/strategy/windows.h"

namespace windlass {
namespace {

void check_stages(const TrainingGraph& training, const Strategy& strategy) {
  if (strategy.stages.empty()) fail_input("strategy: there is no stage");
  size_t next = 0;
  for (size_t s = 0; s < strategy.stages.size(); ++s) {
    const Stage& stage = strategy.stages[s];
    if (stage.first != next || stage.last < stage.first)
      fail_input("strategy: stage {} has ops {} to {}, expected them to begin at {}", s,
                 stage.first, stage.last, next);
    next = stage.last;
    if (stage.group < 0 || static_cast<size_t>(stage.group) >= strategy.groups.size())
      fail_input("strategy: stage {} is on group {} of {}", s, stage.group, strategy.groups.size());
  }
  if (next != training.forward_ops)
    fail_input("strategy: the stages cover {} of {} ops", next, training.forward_ops);
  if (strategy.schedule == ScheduleKind::AllAtOnce && strategy.stages.size() != 1)
    fail_input("strategy: {} stages need a pipeline schedule", strategy.stages.size());
}

}  // namespace

bool windows_tile(const LoopNest& nest, int32_t loop) {
  for (const auto* operands : {&nest.inputs, &nest.outputs, &nest.auxiliaries})
    for (const OperandMap& map : *operands)
      for (const AxisMap& axis : map)
        if (axis.loop == loop &&
            (axis.offset != 0 || axis.stride != axis.window || axis.misses_end))
          return false;
  return true;
}

std::string_view action_name(MemoryAction action) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "keep", "regather", "recompute", "offload", "compress8", "compress4", "compress2"};
  return kNames[static_cast<size_t>(action)];
}

int compressed_bits(MemoryAction action) {
  switch (action) {
    case MemoryAction::Compress8: return 8;
    case MemoryAction::Compress4: return 4;
    case MemoryAction::Compress2: return 2;
    default: return 0;
  }
}

std::vector<MemoryAction> compressions(int fewest_bits) {
  std::vector<MemoryAction> actions;
  if (fewest_bits <= 0) return actions;
  for (const MemoryAction action :
       {MemoryAction::Compress8, MemoryAction::Compress4, MemoryAction::Compress2})
    if (compressed_bits(action) >= fewest_bits) actions.push_back(action);
  return actions;
}

int64_t compressed_bytes(int64_t elements, int bits) {
  constexpr int64_t kGroup = 64, kEndsBytes = 4;
  const int64_t groups = elements == 0 ? 0 : std::max<int64_t>(1, elements / kGroup);
  return groups * kEndsBytes + (elements * bits + 7) / 8;
}

std::string_view schedule_name(ScheduleKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"all-at-once", "gpipe", "1f1b"};
  return kNames[static_cast<size_t>(kind)];
}

Strategy plain_strategy(const TrainingGraph& training, DeviceId device) {
  Strategy strategy;
  strategy.name = "plain";
  strategy.groups = {{device}};
  strategy.stages = {{.first = 0, .last = training.forward_ops}};
  strategy.shardings = {{}};
  strategy.ops.assign(training.forward_ops, 0);
  strategy.saved.assign(training.saved.size(), MemoryAction::Keep);
  strategy.weights.resize(training.graph.ops.size() - training.forward_ops - training.backward_ops);
  return strategy;
}

Strategy strategy_of_packs(PackStrategy packs, std::string name) {
  Strategy strategy;
  strategy.name = std::move(name);
  strategy.packs = std::move(packs);
  return strategy;
}

std::vector<int32_t> stage_of_ops(const Strategy& strategy, size_t forward_ops) {
  std::vector<int32_t> stages(forward_ops, 0);
  for (size_t s = 0; s < strategy.stages.size(); ++s)
    for (size_t i = strategy.stages[s].first; i < strategy.stages[s].last; ++i)
      stages[i] = static_cast<int32_t>(s);
  return stages;
}

std::vector<std::vector<int32_t>> size_kinds(const Strategy& strategy) {
  std::vector<std::vector<int32_t>> kinds(strategy.groups.size());
  if (std::ranges::none_of(strategy.shardings, unequal)) return kinds;
  std::set<int32_t> used(strategy.ops.begin(), strategy.ops.end());
  std::erase_if(used,
                [&](int32_t s) { return !unequal(strategy.shardings[static_cast<size_t>(s)]); });
  for (int32_t s : used)
    for (const Split& split : strategy.shardings[static_cast<size_t>(s)].splits)
      if (const std::string wrong = check_sizes(split.parts, split.sizes); !wrong.empty())
        fail_input("strategy: sharding {} has {}", s, wrong);
  for (size_t g = 0; g < kinds.size(); ++g) {
    std::map<std::vector<int32_t>, int32_t> known;
    const auto members = static_cast<int64_t>(strategy.groups[g].size());
    for (int64_t m = 0; m < members; ++m) {
      std::vector<int32_t> sizes;
      for (int32_t s : used) {
        const Sharding& sharding = strategy.shardings[static_cast<size_t>(s)];
        if (size_of(sharding) != members) continue;
        const std::vector<int32_t> own = sizes_of(sharding, m);
        sizes.insert(sizes.end(), own.begin(), own.end());
      }
      kinds[g].push_back(
          known.try_emplace(sizes, static_cast<int32_t>(known.size())).first->second);
    }
  }
  return kinds;
}

void check_groups(const Machine& machine, const Strategy& strategy) {
  if (strategy.groups.empty()) fail_input("strategy: there is no device group");
  for (size_t g = 0; g < strategy.groups.size(); ++g) {
    std::set<DeviceId> seen;
    if (strategy.groups[g].empty()) fail_input("strategy: group {} has no devices", g);
    for (DeviceId device : strategy.groups[g]) {
      if (!device.valid() || device.index() >= machine.devices.size())
        fail_input("strategy: group {} names device {}, but {} has {} devices", g, device.value,
                   machine.name, machine.devices.size());
      if (!seen.insert(device).second)
        fail_input("strategy: group {} names {} twice", g, machine[device].name);
    }
  }
}

void check_outline(const TrainingGraph& training, const Strategy& strategy) {
  const size_t updates = training.graph.ops.size() - training.forward_ops - training.backward_ops;
  if (strategy.ops.size() != training.forward_ops)
    fail_input("strategy: it splits {} ops, the model has {}", strategy.ops.size(),
               training.forward_ops);
  if (strategy.saved.size() != training.saved.size())
    fail_input("strategy: it has actions for {} saved tensors, the model has {}",
               strategy.saved.size(), training.saved.size());
  for (size_t s = 0; s < strategy.saved.size(); ++s) {
    const Tensor& tensor = training.graph[training.saved[s].tensor];
    if (compressed_bits(strategy.saved[s]) > 0 && !is_float(tensor.type.dtype))
      fail_input(
          "strategy: saved tensor \"{}\" is {}: only floating-point tensors can be compressed; "
          "keep "
          "it, or move it to the host",
          tensor.name, format_type(tensor.type));
  }
  if (strategy.weights.size() != updates)
    fail_input("strategy: it places {} weights, the model trains {}", strategy.weights.size(),
               updates);
  if (strategy.micro_batches < 1)
    fail_input("strategy: {} micro-batches, expected at least 1", strategy.micro_batches);
  if (training.unequal && strategy.micro_batches > training.unequal->count)
    fail_input("strategy: {} micro-batches, the batch is cut into {} unequal ones",
               strategy.micro_batches, training.unequal->count);
  if (strategy.prefetch < 0) fail_input("strategy: prefetch is {}", strategy.prefetch);
  check_stages(training, strategy);
  for (size_t i = 0; i < strategy.ops.size(); ++i)
    if (strategy.ops[i] < 0 || static_cast<size_t>(strategy.ops[i]) >= strategy.shardings.size())
      fail_input("strategy: op {} has sharding {} of {}", i, strategy.ops[i],
                 strategy.shardings.size());
  for (const Residency& residency : strategy.weights)
    if (residency.zero > 3) fail_input("strategy: ZeRO stage {}, expected 0 to 3", residency.zero);
}

void check_sharding(const Op& op, const LoopNest& nest, const Sharding& sharding,
                    size_t group_size) {
  if (size_of(sharding) != static_cast<int64_t>(group_size))
    fail_input("strategy: op \"{}\" is split over {} devices, its group has {}", op.name,
               size_of(sharding), group_size);
  std::vector<int64_t> left;
  for (const LoopDim& loop : nest.loops) left.push_back(loop.size);
  for (const Split& split : sharding.splits) {
    if (split.parts < 1 || split.blocks < 1)
      fail_input("strategy: op \"{}\" has a split into {} parts", op.name, split.parts);
    if (const std::string wrong = check_sizes(split.parts, split.sizes); !wrong.empty())
      fail_input("strategy: op \"{}\" has {}", op.name, wrong);
    if (split.loop < 0 && !split.sizes.empty())
      fail_input("strategy: op \"{}\" has copies of different sizes", op.name);
    if (split.loop < 0) continue;
    if (static_cast<size_t>(split.loop) >= nest.loops.size())
      fail_input("strategy: op \"{}\" has no loop {}", op.name, split.loop);
    const LoopDim& loop = nest.loops[static_cast<size_t>(split.loop)];
    if (split.parts > 1 && loop.role == LoopRole::Whole)
      fail_input("strategy: {} \"{}\" cannot be split along {}", op_info(op.kind).name, op.name,
                 loop.name);
    if (split.blocks > 1 && std::ranges::count(sharding.splits, split.loop, &Split::loop) != 1)
      fail_input("strategy: {} \"{}\": {} is cut in blocks and once more", op_info(op.kind).name,
                 op.name, loop.name);
    if (split.blocks > 1 && !windows_tile(nest, split.loop))
      fail_input("strategy: {} \"{}\": {} cannot be cut in blocks, windows do not tile them",
                 op_info(op.kind).name, op.name, loop.name);
    int64_t& size = left[static_cast<size_t>(split.loop)];
    const int64_t least =
        size % split.blocks == 0 ? smallest_part(size / split.blocks, split.parts, split.sizes) : 0;
    if (least == 0)
      fail_input("strategy: {} \"{}\": {} of size {} cannot be cut into {} parts",
                 op_info(op.kind).name, op.name, loop.name, loop.size,
                 format_parts(split.parts, split.sizes));
    size = least * split.blocks;
  }
  // Borders inside of unequal parts are rounded in each of them.
  if (!unequal(sharding)) return;
  for (int64_t m = 0; m < size_of(sharding); ++m) {
    const std::vector<LoopPart> parts = loop_parts(nest, sharding, m);
    for (size_t l = 0; l < parts.size(); ++l)
      if (parts[l].range.size() == 0 && nest.loops[l].size > 0)
        fail_input("strategy: {} \"{}\": member {} has an empty part of {}", op_info(op.kind).name,
                   op.name, m, nest.loops[l].name);
  }
}

namespace {

void check_shardings(const TrainingGraph& training, const Strategy& strategy) {
  for (const Stage& stage : strategy.stages) {
    for (size_t i = stage.first; i < stage.last; ++i) {
      const Op& op = training.graph.ops[i];
      const LoopNest nest = loops_of(training.graph, op);
      check_sharding(op, nest, strategy.shardings[static_cast<size_t>(strategy.ops[i])],
                     strategy.groups[static_cast<size_t>(stage.group)].size());
    }
  }
}

}  // namespace

Bytes usable_memory(const Device& device, const Strategy& strategy) {
  return strategy.memory_cap.value > 0 ? std::min(device.limit, strategy.memory_cap) : device.limit;
}

void check_strategy(const TrainingGraph& training, const Machine& machine,
                    const Strategy& strategy) {
  if (strategy.memory_cap.value < 0)
    fail_input("strategy: a memory cap of {} bytes", strategy.memory_cap.value);
  if (strategy.packs) {
    check_packs(*strategy.packs, int64_t{find_layers(training.graph).back()} + 1,
                find_samples(training).samples, static_cast<int64_t>(machine.devices.size()));
    return;
  }
  check_groups(machine, strategy);
  check_outline(training, strategy);
  if (training.unequal && strategy.micro_batches != training.unequal->count)
    fail_input("strategy: {} micro-batches, the batch is cut into {} unequal ones",
               strategy.micro_batches, training.unequal->count);
  check_shardings(training, strategy);
  if (training.unequal) check_shardings(training.unequal->smaller, strategy);
}

}  // namespace windlass
