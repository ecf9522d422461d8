// What a network and a plan of it leave to settings by block and by head.

#include <algorithm>
#include <map>

#include "windlass/export/settings.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/blocks.h"

namespace windlass {

MemoryAction block_action(const ExportSubject& subject, size_t first, size_t last) {
  if (subject.strategy.packs) return MemoryAction::Recompute;
  int64_t all = 0, again = 0, moved = 0;
  for (size_t s = 0; s < subject.strategy.saved.size(); ++s) {
    const SavedTensor& saved = subject.training.saved[s];
    if (!saved.producer.valid() || saved.producer.index() < first || saved.producer.index() >= last)
      continue;
    all += saved.bytes.value;
    if (subject.strategy.saved[s] == MemoryAction::Recompute) again += saved.bytes.value;
    if (subject.strategy.saved[s] == MemoryAction::Offload) moved += saved.bytes.value;
  }
  if (2 * (again + moved) <= all) return MemoryAction::Keep;
  return again >= moved ? MemoryAction::Recompute : MemoryAction::Offload;
}

Strategy blocks_alike(const ExportSubject& subject, const TargetSettings& to) {
  Strategy strategy = subject.strategy;
  for (Residency& home : strategy.weights)
    home = {.zero = static_cast<uint8_t>(to.dp * to.cp > 1 ? to.zero : 0),
            .host = to.host_weights,
            .host_update = to.host_states > 0};
  std::map<OpId, MemoryAction> actions;
  for (const Block& block : find_blocks(subject.network))
    for (int64_t r = 0; r < block.repetitions; ++r) {
      const size_t first = block.first_op + static_cast<size_t>(r) * block.ops;
      const MemoryAction action = block_action(subject, first, first + block.ops);
      for (size_t i = first; i < first + block.ops; ++i) actions[OpId(i)] = action;
      if (action == MemoryAction::Recompute)
        actions[OpId(first + block.ops - 1)] = MemoryAction::Keep;
    }
  for (size_t s = 0; s < strategy.saved.size(); ++s)
    if (const OpId producer = subject.training.saved[s].producer; producer.valid())
      strategy.saved[s] = actions.at(producer);
  return strategy;
}

namespace {

// A norm, or the mean over channels of one that the runner takes apart.
bool is_norm(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::LayerNorm || op.kind == OpKind::RmsNorm) return true;
  if (op.kind != OpKind::Reduce) return false;
  const auto& attrs = std::get<ReduceAttrs>(op.attrs);
  const auto rank = static_cast<int64_t>(graph[op.inputs[0]].type.shape.size());
  return attrs.fn == ReduceFn::Mean && attrs.keep_dims && attrs.axes == Ints{rank - 1};
}

}  // namespace

bool has_norms(const ExportSubject& subject) {
  return std::ranges::any_of(subject.network.ops,
                             [&](const Op& op) { return is_norm(subject.network, op); });
}

bool splits_norms(const ExportSubject& subject, int64_t cp) {
  const Graph& graph = subject.training.graph;
  const BatchAxes batch = find_batch(subject.network);
  for (size_t i = 0; i < subject.strategy.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (!is_norm(graph, op)) continue;
    const auto& splits =
        subject.strategy.shardings[static_cast<size_t>(subject.strategy.ops[i])].splits;
    int64_t parts = 1;
    for (const Split& split : splits)
      if (split.loop >= 0 && split.loop != batch.loop[i]) parts *= split.parts;
    if (parts > cp) return true;
  }
  return false;
}

LayerStages layers_of_stages(const ExportSubject& subject, int64_t pp, int64_t interleave) {
  Block most;
  const auto rank = [](const Block& block) {
    return std::pair(block.repetitions > 1, block.repetitions * static_cast<int64_t>(block.ops));
  };
  for (const Block& block : find_blocks(subject.network))
    if (rank(block) > rank(most)) most = block;
  LayerStages made{.layers = most.repetitions};
  if (pp == 1 || subject.strategy.packs) return made;
  const std::vector<int32_t> stages = stage_of_ops(subject.strategy, subject.training.forward_ops);
  std::vector<int64_t> layers(subject.strategy.stages.size(), 0);
  for (int64_t r = 0; r < most.repetitions; ++r) {
    const size_t first = most.first_op + static_cast<size_t>(r) * most.ops;
    ++layers[static_cast<size_t>(stages[first])];
    made.within = made.within || stages[first] != stages[first + most.ops - 1];
  }
  const int64_t wanted = pp * interleave;
  // Of the plan's own stages, unless some have no layer while others have several.
  const bool bare = std::ranges::find(layers, 0) != layers.end() && made.layers >= wanted;
  made.within = made.within || bare;
  if (static_cast<int64_t>(layers.size()) == wanted && !bare) {
    made.of_stage = std::move(layers);
    return made;
  }
  for (int64_t s = 0; s < wanted; ++s)
    made.of_stage.push_back(made.layers / wanted + (s < made.layers % wanted));
  return made;
}

}  // namespace windlass
