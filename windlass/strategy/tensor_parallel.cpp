#include "windlass/strategy/tensor_parallel.h"

#include <algorithm>

namespace windlass {
namespace {

// Vocabularies are worth splitting, tables of positions are not.
constexpr int64_t kVocabulary = 8192;

class Megatron {
 public:
  Megatron(const Graph& graph, size_t ops, const BatchAxes& batch, int32_t parts, bool sequence)
      : graph_(graph), ops_(ops), batch_(batch), parts_(parts), sequence_(sequence) {
    state_.resize(graph.tensors.size());
    derived_.resize(graph.tensors.size());
    readers_.resize(graph.tensors.size());
    for (size_t i = 0; i < ops; ++i) {
      nests_.push_back(loops_of(graph, graph.ops[i]));
      bool from_data = false;
      for (TensorId id : graph.ops[i].inputs) {
        if (!id.valid()) continue;
        readers_[id.index()].push_back(i);
        const Tensor& tensor = graph[id];
        from_data = from_data || tensor.role == TensorRole::Input ||
                    tensor.role == TensorRole::Label || derived_[id.index()];
      }
      for (TensorId id : graph.ops[i].outputs) derived_[id.index()] = from_data;
    }
  }

  std::vector<TensorSplit> run() {
    std::vector<TensorSplit> result;
    for (size_t i = 0; i < ops_; ++i) {
      TensorSplit choice = choose(i);
      if (choice.split.loop < 0 && sequence_) choice = along_tokens(i);
      record(i, choice);
      result.push_back(choice);
    }
    return result;
  }

 private:
  struct State {
    int32_t axis = -1;  // split; -1: copies
    int32_t blocks = 1;
    bool sequence = false;
  };

  const Op& op(size_t i) const { return graph_.ops[i]; }
  bool is_weight(TensorId id) const { return id.valid() && graph_[id].role == TensorRole::Weight; }
  bool has_weight(size_t i) const { return op(i).inputs.size() > 1 && is_weight(op(i).inputs[1]); }
  bool is_product(size_t i) const {
    const OpKind kind = op(i).kind;
    return (kind == OpKind::Linear || kind == OpKind::MatMul || kind == OpKind::Conv ||
            kind == OpKind::GroupedLinear || kind == OpKind::SlotLinear) &&
           has_weight(i);
  }

  bool can_split(size_t i, int32_t loop, int32_t blocks = 1) const {
    const LoopDim& dim = nests_[i].loops[static_cast<size_t>(loop)];
    return dim.role != LoopRole::Whole && dim.size % blocks == 0 && dim.size / blocks >= parts_;
  }

  // Split that an input's state asks of the op; loop -1 if it cannot be followed.
  Split follow(size_t i, size_t input) const {
    const State& state = state_[op(i).inputs[input].index()];
    const AxisMap& map = nests_[i].inputs[input][static_cast<size_t>(state.axis)];
    if (map.loop < 0) return {-1, parts_};
    const auto map_blocks = static_cast<int32_t>(map.blocks);
    if (state.blocks % map_blocks != 0) return {-1, parts_};
    const int32_t blocks = state.blocks / map_blocks;
    if (blocks > 1 && map.stride != 1) return {-1, parts_};
    if (!can_split(i, map.loop, blocks)) return {-1, parts_};
    return {map.loop, parts_, blocks};
  }

  // Whether an op works on parts of what comes in without mixing them.
  bool transparent(size_t i) const {
    switch (op(i).kind) {
      case OpKind::Unary:
      case OpKind::Dropout:
      case OpKind::Cast:
      case OpKind::Reshape:
      case OpKind::Transpose:
      case OpKind::Slice:
      case OpKind::Concat:
      case OpKind::Split:
      case OpKind::Attention:
      case OpKind::Softmax:
      case OpKind::Rotary:
      case OpKind::Where:
      case OpKind::Expand:
      case OpKind::BatchNorm:
      case OpKind::Pool:
      case OpKind::CrossEntropy: return true;
      case OpKind::MatMul: return !has_weight(i);
      case OpKind::Binary: {
        const auto fn = std::get<BinaryAttrs>(op(i).attrs).fn;
        if (fn == BinaryFn::Mul) return true;
        // A residual joins two activations; a bias or mask does not.
        int activations = 0;
        for (TensorId id : op(i).inputs) activations += id.valid() && derived_[id.index()] ? 1 : 0;
        return activations < 2;
      }
      default: return false;
    }
  }

  // Whether parts of the result of op i are of use: another product or the loss takes them.
  bool worth_splitting(size_t i) const {
    std::vector<size_t> pending = {i};
    std::vector<bool> seen(ops_, false);
    while (!pending.empty()) {
      const size_t at = pending.back();
      pending.pop_back();
      for (TensorId id : op(at).outputs)
        for (size_t reader : readers_[id.index()]) {
          if (op(reader).kind == OpKind::CrossEntropy) return true;
          if (is_product(reader)) return true;
          if (seen[reader] || !transparent(reader)) continue;
          seen[reader] = true;
          pending.push_back(reader);
        }
    }
    return false;
  }

  int32_t loop_named(size_t i, std::string_view name) const {
    for (size_t l = 0; l < nests_[i].loops.size(); ++l)
      if (nests_[i].loops[l].name == name) return static_cast<int32_t>(l);
    return -1;
  }

  // The loop of a product that only the weight and the result have, and how many runs of equal size
  // its result is cut into right away.
  Split by_outputs(size_t i) const {
    const LoopNest& nest = nests_[i];
    for (size_t a = 0; a < nest.outputs[0].size(); ++a) {
      const int32_t loop = nest.outputs[0][a].loop;
      const auto has = [&](const OperandMap& map) {
        return std::ranges::any_of(map, [&](const AxisMap& axis) { return axis.loop == loop; });
      };
      if (loop < 0 || has(nest.inputs[0]) || !has(nest.inputs[1])) continue;
      int32_t blocks = 1;
      const auto& readers = readers_[op(i).outputs[0].index()];
      if (readers.size() == 1 && op(readers[0]).kind == OpKind::Split) {
        const auto& attrs = std::get<SplitAttrs>(op(readers[0]).attrs);
        const bool equal =
            std::ranges::all_of(attrs.sizes, [&](int64_t size) { return size == attrs.sizes[0]; });
        if (equal && attrs.axis == static_cast<int64_t>(a))
          blocks = static_cast<int32_t>(attrs.sizes.size());
      }
      if (can_split(i, loop, blocks)) return {loop, parts_, blocks};
    }
    return {-1, parts_};
  }

  TensorSplit choose(size_t i) const {
    const TensorSplit copies{{-1, parts_}};
    const Op& o = op(i);
    if (o.kind == OpKind::Embedding && has_embedding_table(i)) {
      for (size_t l = 0; l < nests_[i].loops.size(); ++l)
        if (nests_[i].loops[l].role == LoopRole::Reduced && nests_[i].loops[l].size >= kVocabulary)
          return {{static_cast<int32_t>(l), parts_}};
      return copies;
    }
    if (is_product(i)) {
      const State& input = state_[o.inputs[0].index()];
      if (input.axis >= 0 && !input.sequence) {
        const Split split = follow(i, 0);
        if (split.loop >= 0 &&
            nests_[i].loops[static_cast<size_t>(split.loop)].role == LoopRole::Reduced)
          return {split};
      }
      return worth_splitting(i) ? TensorSplit{by_outputs(i)} : copies;
    }
    if (!transparent(i) && o.kind != OpKind::Binary) return copies;
    Split split{-1, parts_};
    for (size_t k = 0; k < o.inputs.size(); ++k) {
      if (!o.inputs[k].valid()) continue;
      const State& state = state_[o.inputs[k].index()];
      if (state.axis < 0 || state.sequence) continue;
      const Split wanted = follow(i, k);
      if (wanted.loop < 0) return copies;
      if (split.loop >= 0 && split != wanted) return copies;
      split = wanted;
    }
    if (split.loop < 0) return copies;
    const LoopRole role = nests_[i].loops[static_cast<size_t>(split.loop)].role;
    if (role == LoopRole::Coupled && o.kind != OpKind::CrossEntropy) return copies;
    // A whole activation beside a split one: the residual stream stays whole.
    for (size_t k = 0; k < o.inputs.size(); ++k) {
      if (!o.inputs[k].valid() || !derived_[o.inputs[k].index()]) continue;
      const State& state = state_[o.inputs[k].index()];
      const bool has_loop = std::ranges::any_of(
          nests_[i].inputs[k], [&](const AxisMap& axis) { return axis.loop == split.loop; });
      if ((state.axis < 0 || state.sequence) && has_loop && o.kind != OpKind::CrossEntropy)
        return copies;
    }
    return {split};
  }

  bool has_embedding_table(size_t i) const {
    return std::ranges::any_of(op(i).inputs, [&](TensorId id) { return is_weight(id); });
  }

  TensorSplit along_tokens(size_t i) const {
    const TensorSplit copies{{-1, parts_}};
    if (is_product(i) || op(i).outputs.empty() || op(i).outputs[0] == graph_.loss) return copies;
    if (!derived_[op(i).outputs[0].index()]) return copies;
    const OperandMap& map = nests_[i].outputs[0];
    const TensorId out = op(i).outputs[0];
    if (map.size() < 2) return copies;
    // [batch, tokens, ...], [tokens, batch, ...], or both in one axis.
    const auto axis = static_cast<size_t>(map.size() >= 3 && batch_.axis[out.index()] != 1 ? 1 : 0);
    const int32_t loop = map[axis].loop;
    if (loop < 0 || !can_split(i, loop)) return copies;
    if (nests_[i].loops[static_cast<size_t>(loop)].role != LoopRole::Free) return copies;
    return {{loop, parts_}, true};
  }

  void record(size_t i, const TensorSplit& choice) {
    if (choice.split.loop < 0) return;
    const auto note = [&](const std::vector<TensorId>& ids, const std::vector<OperandMap>& maps) {
      for (size_t k = 0; k < ids.size(); ++k) {
        if (!ids[k].valid()) continue;
        for (size_t a = 0; a < maps[k].size(); ++a)
          if (maps[k][a].loop == choice.split.loop)
            state_[ids[k].index()] = {static_cast<int32_t>(a),
                                      choice.split.blocks * static_cast<int32_t>(maps[k][a].blocks),
                                      choice.sequence};
      }
    };
    note(op(i).outputs, nests_[i].outputs);
  }

  const Graph& graph_;
  size_t ops_;
  const BatchAxes& batch_;
  int32_t parts_;
  bool sequence_;
  std::vector<LoopNest> nests_;
  std::vector<State> state_;
  std::vector<bool> derived_;  // by tensor: depends on data
  std::vector<std::vector<size_t>> readers_;
};

}  // namespace

std::vector<TensorSplit> megatron_splits(const Graph& graph, size_t forward_ops,
                                         const BatchAxes& batch, int32_t parts, bool sequence) {
  if (parts == 1) return std::vector<TensorSplit>(forward_ops, TensorSplit{{-1, 1}});
  return Megatron(graph, forward_ops, batch, parts, sequence).run();
}

std::vector<TensorSplit> dense_splits(const Graph& graph, size_t forward_ops, int32_t parts) {
  std::vector<TensorSplit> result(forward_ops, TensorSplit{{-1, parts}});
  for (size_t i = 0; i < forward_ops; ++i) {
    if (graph.ops[i].kind != OpKind::Linear) continue;
    const LoopNest nest = loops_of(graph, graph.ops[i]);
    for (size_t l = 0; l < nest.loops.size(); ++l)
      if (nest.loops[l].name == "n" && nest.loops[l].size >= parts)
        result[i].split = {static_cast<int32_t>(l), parts};
  }
  return result;
}

}  // namespace windlass
