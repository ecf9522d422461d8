// When saved tensors leave their memory in the forward pass.

#include <algorithm>
#include <map>

#include "windlass/task/emitter.h"

namespace windlass {

// When the forward pass of a stage is done with a tensor that goes elsewhere.
void Emitter::plan_stashes() {
  stash_after_.resize(training_.forward_ops);
  for (auto& list : stash_after_) list.clear();
  const auto leaves = [](MemoryAction action) {
    return action == MemoryAction::Offload || compressed_bits(action) > 0;
  };
  offloads_ = std::ranges::any_of(strategy_->saved, leaves);
  if (!offloads_) return;
  std::vector<std::map<int32_t, size_t>> last(training_.saved.size());  // by saved tensor, by stage
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    for (const auto* list : {&op.inputs, &op.outputs, &op.auxiliaries})
      for (TensorId id : *list) {
        const int32_t s = id.valid() ? facts_.saved_index[id.index()] : -1;
        if (s >= 0 && leaves(strategy_->saved[static_cast<size_t>(s)]))
          last[static_cast<size_t>(s)][stage_of_[i]] = i;
      }
  }
  for (size_t s = 0; s < last.size(); ++s)
    for (const auto& [stage, op] : last[s]) stash_after_[op].push_back(static_cast<int32_t>(s));
}

void Emitter::stash_after(OpId id, const WorkItem& item) {
  const int32_t group = strategy_->stages[static_cast<size_t>(item.stage)].group;
  for (int32_t s : stash_after_[id.index()]) {
    const SavedTensor& saved = training_.saved[static_cast<size_t>(s)];
    for (OpId consumer : saved.consumers) {
      const Op& op = training_.graph[consumer];
      if (stage_of_[consumer.index()] != item.stage || !op.forward.valid()) continue;
      for (const ReadTemplate& read : made_of(op.forward, group).saved_reads()) {
        const TensorId tensor = tables_.tensors(op.forward)[read.place];
        if (facts_.saved_index[tensor.index()] != s) continue;
        if (!training_.graph[tensor].producer.valid()) continue;  // data stays
        if (const Value* there = find(kForward, tensor, item.micro_batch, read.want.layout, group))
          stash(tensor, item.micro_batch, *there, strategy_->saved[static_cast<size_t>(s)]);
      }
    }
  }
}

}  // namespace windlass
