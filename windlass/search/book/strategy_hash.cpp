#include "windlass/search/book/strategy_hash.h"

#include "windlass/base/hash.h"

namespace windlass {
namespace {

uint64_t number(size_t size) { return static_cast<uint64_t>(size); }

void add_sharding(Hasher& hasher, const Sharding& sharding) {
  hasher.add(number(sharding.splits.size()));
  for (const Split& split : sharding.splits) {
    hasher.add(split.loop).add(split.parts).add(split.blocks).add(number(split.sizes.size()));
    for (const int32_t size : split.sizes) hasher.add(size);
  }
}

}  // namespace

uint64_t strategy_hash(const Strategy& strategy) {
  Hasher hasher;
  hasher.add(strategy.micro_batches).add(static_cast<uint64_t>(strategy.schedule));
  hasher.add(number(strategy.groups.size()));
  for (const auto& group : strategy.groups) {
    hasher.add(number(group.size()));
    for (DeviceId device : group) hasher.add(number(device.index()));
  }
  hasher.add(number(strategy.stages.size()));
  for (const Stage& stage : strategy.stages)
    hasher.add(number(stage.first)).add(number(stage.last)).add(stage.group);
  std::vector<uint64_t> shardings;
  for (const Sharding& sharding : strategy.shardings) {
    Hasher own;
    add_sharding(own, sharding);
    shardings.push_back(own.result());
  }
  for (const int32_t op : strategy.ops) hasher.add(shardings[static_cast<size_t>(op)]);
  for (const MemoryAction action : strategy.saved) hasher.add(static_cast<uint64_t>(action));
  for (const Residency& weight : strategy.weights)
    hasher.add(uint64_t{weight.zero} | (weight.host ? 4U : 0U) | (weight.host_update ? 8U : 0U));
  hasher.add(strategy.bucket.value).add(strategy.virtual_memory).add(strategy.prefetch);
  hasher.add(strategy.in_turn).add(strategy.memory_cap.value);
  return hasher.result();
}

}  // namespace windlass
