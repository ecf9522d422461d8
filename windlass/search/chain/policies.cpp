#include "windlass/search/chain/policies.h"

#include <algorithm>

#include "windlass/strategy/stages.h"

namespace windlass {
namespace {

using Saved = std::vector<MemoryAction>;

// The last forward op that reads each tensor or a view of it.
std::vector<size_t> last_readers(const TrainingGraph& training) {
  const std::vector<TensorId> roots = storage_roots(training.graph);
  std::vector<size_t> last(training.graph.tensors.size(), 0);
  for (size_t i = 0; i < training.forward_ops; ++i)
    for (TensorId id : training.graph.ops[i].inputs)
      if (id.valid()) last[roots[id.index()].index()] = i;
  return last;
}

}  // namespace

std::vector<Saved> named_policies(const TrainingGraph& training, const Strategy& base, bool send) {
  const std::vector<size_t> last = last_readers(training);
  Saved sent = base.saved;
  for (size_t s = 0; s < sent.size(); ++s)
    if (training.saved[s].producer.valid()) sent[s] = MemoryAction::Offload;
  // What passes an end stays, as does what lies outside.
  const auto recomputed = [&](const Checkpoints& checkpoints, Saved saved) {
    for (size_t s = 0; s < saved.size(); ++s) {
      const OpId producer = training.saved[s].producer;
      if (!producer.valid() || producer.index() < checkpoints.first ||
          producer.index() >= checkpoints.last)
        continue;
      const auto end = std::ranges::upper_bound(checkpoints.ends, producer.index());
      const bool passes =
          end != checkpoints.ends.end() && last[training.saved[s].tensor.index()] >= *end;
      if (!passes) saved[s] = MemoryAction::Recompute;
    }
    return saved;
  };
  std::vector<Saved> list;
  for (const Checkpoints& checkpoints : {block_checkpoints(training), sqrt_checkpoints(training)}) {
    list.push_back(recomputed(checkpoints, base.saved));
    if (send) list.push_back(recomputed(checkpoints, sent));
  }
  if (send) list.push_back(std::move(sent));
  return list;
}

}  // namespace windlass
