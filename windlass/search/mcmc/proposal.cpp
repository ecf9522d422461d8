#include "windlass/search/mcmc/proposal.h"

#include <map>
#include <utility>

#include "windlass/base/hash.h"

namespace windlass {
namespace {

int64_t packed(const Residency& residency) {
  return residency.zero | (residency.host ? 4 : 0) | (residency.host_update ? 8 : 0);
}
Residency unpacked(int64_t value) {
  return {.zero = static_cast<uint8_t>(value & 3),
          .host = (value & 4) != 0,
          .host_update = (value & 8) != 0};
}

uint64_t part_key(Proposal::What what, int64_t index, int64_t value) {
  return Hasher().add(static_cast<uint64_t>(what)).add(index).add(value).result();
}
uint64_t stages_key(const std::vector<Stage>& stages) {
  Hasher hasher;
  for (const Stage& stage : stages) hasher.add(static_cast<uint64_t>(stage.first)).add(stage.group);
  return hasher.result();
}

}  // namespace

bool set_sharding(Strategy& strategy, size_t op, int32_t sharding, Proposal& proposal) {
  if (strategy.ops[op] == sharding) return false;
  proposal.changes.push_back(
      {Proposal::What::Sharding, static_cast<int32_t>(op), strategy.ops[op]});
  strategy.ops[op] = sharding;
  return true;
}

bool set_saved(Strategy& strategy, size_t s, MemoryAction action, Proposal& proposal) {
  if (strategy.saved[s] == action) return false;
  proposal.changes.push_back(
      {Proposal::What::Saved, static_cast<int32_t>(s), static_cast<int64_t>(strategy.saved[s])});
  strategy.saved[s] = action;
  return true;
}

bool set_weight(Strategy& strategy, size_t u, const Residency& residency, Proposal& proposal) {
  if (strategy.weights[u] == residency) return false;
  proposal.changes.push_back(
      {Proposal::What::Weight, static_cast<int32_t>(u), packed(strategy.weights[u])});
  strategy.weights[u] = residency;
  return true;
}

void take_back(Strategy& strategy, const Proposal& proposal) {
  for (auto change = proposal.changes.rbegin(); change != proposal.changes.rend(); ++change) {
    const auto index = static_cast<size_t>(change->index);
    switch (change->what) {
      case Proposal::What::Sharding:
        strategy.ops[index] = static_cast<int32_t>(change->before);
        break;
      case Proposal::What::Saved:
        strategy.saved[index] = static_cast<MemoryAction>(change->before);
        break;
      case Proposal::What::Weight: strategy.weights[index] = unpacked(change->before); break;
      case Proposal::What::Prefetch:
        strategy.prefetch = static_cast<int32_t>(change->before);
        break;
      case Proposal::What::Bucket: strategy.bucket = Bytes(change->before); break;
    }
  }
  if (!proposal.stages.empty()) strategy.stages = proposal.stages;
}

uint64_t strategy_key(const Strategy& strategy) {
  uint64_t key = stages_key(strategy.stages) ^ static_cast<uint64_t>(strategy.memory_cap.value);
  const auto add = [&](Proposal::What what, size_t index, int64_t value) {
    key ^= part_key(what, static_cast<int64_t>(index), value);
  };
  for (size_t i = 0; i < strategy.ops.size(); ++i)
    add(Proposal::What::Sharding, i, strategy.ops[i]);
  for (size_t s = 0; s < strategy.saved.size(); ++s)
    add(Proposal::What::Saved, s, static_cast<int64_t>(strategy.saved[s]));
  for (size_t u = 0; u < strategy.weights.size(); ++u)
    add(Proposal::What::Weight, u, packed(strategy.weights[u]));
  add(Proposal::What::Prefetch, 0, strategy.prefetch);
  add(Proposal::What::Bucket, 0, strategy.bucket.value);
  return key;
}

uint64_t strategy_key_after(uint64_t key, const Strategy& changed, const Proposal& proposal) {
  // Walked backwards, so that an element that changed twice passes through each of its values.
  std::map<std::pair<Proposal::What, int32_t>, int64_t> now;
  for (auto change = proposal.changes.rbegin(); change != proposal.changes.rend(); ++change) {
    const auto index = static_cast<size_t>(change->index);
    int64_t value = 0;
    switch (change->what) {
      case Proposal::What::Sharding: value = changed.ops[index]; break;
      case Proposal::What::Saved: value = static_cast<int64_t>(changed.saved[index]); break;
      case Proposal::What::Weight: value = packed(changed.weights[index]); break;
      case Proposal::What::Prefetch: value = changed.prefetch; break;
      case Proposal::What::Bucket: value = changed.bucket.value; break;
    }
    if (proposal.changes.size() > 1) {
      const auto [at, first] = now.emplace(std::pair(change->what, change->index), value);
      if (!first) value = at->second;
      at->second = change->before;
    }
    key ^= part_key(change->what, change->index, value);
    key ^= part_key(change->what, change->index, change->before);
  }
  if (!proposal.stages.empty()) key ^= stages_key(proposal.stages) ^ stages_key(changed.stages);
  return key;
}

}  // namespace windlass
