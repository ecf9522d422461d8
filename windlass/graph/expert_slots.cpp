#include "windlass/graph/expert_slots.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/rewrite.h"

namespace windlass {
namespace {

// Rows of experts in slots: instead of a tensor [token, choice, width].
struct SlotRows {
  TensorId chosen;  // as it was
  TensorId rows, used;
  SlotAttrs attrs;
};

class SlotWriter {
 public:
  SlotWriter(Graph& graph, double capacity)
      : graph_(graph),
        old_(graph.ops),
        samples_(std::max<int64_t>(1, find_batch(graph).samples)),
        capacity_(capacity),
        rewriter_(graph) {}

  void run() {
    for (const Op& op : old_) {
      if (op.kind == OpKind::GroupedLinear)
        multiply(op);
      else if (op.kind == OpKind::Combine && in_slots(op.inputs[0]))
        collect(op);
      else if (std::ranges::any_of(op.inputs, [&](TensorId id) { return in_slots(id); }))
        apply(op);
      else
        rewriter_.keep(op);
    }
    for (TensorId id : graph_.outputs)
      if (in_slots(id)) refuse(graph_[id].name);
    const size_t before = graph_.tensors.size() - made_;
    rewriter_.finish();
    restore_ids(before);
  }

 private:
  // Tensors that are still there have the ids they had, since first values are drawn by id; new
  // ones take those of the rows that they stand for, and then others. `before`: how many there
  // were.
  void restore_ids(size_t before) {
    std::vector<TensorId> ids, free;
    for (size_t t = 0; t < before; ++t) (in_slots(TensorId(t)) ? free : ids).emplace_back(t);
    ensure(ids.size() + made_ == graph_.tensors.size(), "rewriting has removed other tensors");
    for (size_t t = 0; t < made_; ++t)
      ids.push_back(t < free.size() ? free[t] : TensorId(before + t - free.size()));
    std::vector<Tensor> tensors(graph_.tensors.size());
    for (size_t t = 0; t < ids.size(); ++t) tensors[ids[t].index()] = graph_.tensors[t];
    graph_.tensors = std::move(tensors);
    const auto rename = [&](std::vector<TensorId>& list) {
      for (TensorId& id : list)
        if (id.valid()) id = ids[id.index()];
    };
    for (Op& op : graph_.ops) rename(op.inputs), rename(op.outputs);
    rename(graph_.inputs);
    rename(graph_.outputs);
    if (graph_.loss.valid()) graph_.loss = ids[graph_.loss.index()];
  }

  TensorId emit(OpKind kind, const Attrs& attrs, const std::vector<TensorId>& inputs,
                const std::string& name) {
    const size_t known = graph_.tensors.size();
    const TensorId first = rewriter_.emit(kind, attrs, inputs, name);
    made_ += graph_.tensors.size() - known;
    return first;
  }

  bool in_slots(TensorId id) const { return id.valid() && slots_.contains(id); }
  [[noreturn]] static void refuse(const std::string& name) {
    fail_unsupported("\"{}\": rows of experts are not put into slots for it", name);
  }

  SlotAttrs slots_for(int64_t experts, int64_t tokens, int64_t choices) const {
    const int64_t block = tokens % samples_ == 0 ? tokens / samples_ : tokens;
    const double share =
        static_cast<double>(block) * static_cast<double>(choices) / static_cast<double>(experts);
    // With so many slots for each token no choice is too uneven.
    const auto most = static_cast<double>(block);
    const double wanted = std::clamp(std::ceil(capacity_ * share), 1.0, most);
    return {experts, block, static_cast<int64_t>(wanted)};
  }

  const SlotRows& dispatched(const Op& op) {
    const TensorId x = op.inputs[0], chosen = op.inputs[2];
    const auto [entry, fresh] = dispatched_.try_emplace({x, chosen});
    if (!fresh) return entry->second;
    const Shape& choices = graph_[chosen].type.shape;
    const SlotAttrs attrs = slots_for(graph_[op.inputs[1]].type.shape[0], choices[0], choices[1]);
    const TensorId rows = emit(OpKind::Dispatch, attrs, {x, chosen}, graph_[x].name + ".dispatch");
    return entry->second = {chosen, rows, TensorId(rows.index() + 1), attrs};
  }

  void multiply(const Op& op) {
    const TensorId x = op.inputs[0], chosen = op.inputs[2];
    const bool whole_tokens = graph_[x].type.shape.size() == 2;
    if (!whole_tokens && (!in_slots(x) || slots_.at(x).chosen != chosen)) refuse(op.name);
    SlotRows made = whole_tokens ? dispatched(op) : slots_.at(x);
    const Shape& choices = graph_[chosen].type.shape;
    const double filled =
        static_cast<double>(choices[1]) * static_cast<double>(made.attrs.block) /
        (static_cast<double>(made.attrs.experts) * static_cast<double>(made.attrs.slots));
    made.rows = emit(OpKind::SlotLinear, SlotLinearAttrs{filled},
                     {made.rows, op.inputs[1], made.used}, op.name);
    slots_[op.outputs[0]] = made;
  }

  // Elementwise, on rows of the same choices.
  void apply(const Op& op) {
    const bool elementwise =
        op.kind == OpKind::Unary || op.kind == OpKind::Binary || op.kind == OpKind::Cast;
    if (!elementwise || !in_slots(op.inputs[0])) refuse(op.name);
    SlotRows made = slots_.at(op.inputs[0]);
    std::vector<TensorId> inputs;
    for (TensorId id : op.inputs) {
      if (!in_slots(id) || slots_.at(id).chosen != made.chosen ||
          graph_[id].type.shape != graph_[op.outputs[0]].type.shape)
        refuse(op.name);
      inputs.push_back(slots_.at(id).rows);
    }
    made.rows = emit(op.kind, op.attrs, inputs, op.name);
    slots_[op.outputs[0]] = made;
  }

  void collect(const Op& op) {
    const SlotRows& from = slots_.at(op.inputs[0]);
    if (in_slots(op.inputs[1])) refuse(op.name);
    rewriter_.replace(op, OpKind::Collect, from.attrs, {from.rows, from.chosen, op.inputs[1]});
  }

  Graph& graph_;
  const std::vector<Op> old_;
  const int64_t samples_;
  const double capacity_;
  Rewriter rewriter_;
  size_t made_ = 0;  // tensors that were emitted
  std::map<std::pair<TensorId, TensorId>, SlotRows> dispatched_;
  std::map<TensorId, SlotRows> slots_;  // by the tensor they stand for
};

}  // namespace

int64_t experts_of(const Graph& network) {
  int64_t experts = 0;
  for (const Op& op : network.ops)
    if ((op.kind == OpKind::GroupedLinear || op.kind == OpKind::SlotLinear) && !op.forward.valid())
      experts = std::gcd(experts, network[op.inputs[1]].type.shape[0]);
  return experts;
}

bool has_expert_slots(const Graph& network) {
  return std::ranges::any_of(network.ops, [](const Op& op) {
    return op.kind == OpKind::SlotLinear && !op.forward.valid();
  });
}

Graph with_expert_slots(const Graph& network, double capacity) {
  if (!(capacity >= 1 && capacity <= 1e6))
    fail_input("an expert capacity of {}, expected at least 1: its even share of the rows",
               capacity);
  if (std::ranges::none_of(network.ops,
                           [](const Op& op) { return op.kind == OpKind::GroupedLinear; }))
    fail_input("an expert capacity is given, but the network has no mixtures of experts");
  Graph result = network;
  SlotWriter(result, capacity).run();
  return result;
}

}  // namespace windlass
