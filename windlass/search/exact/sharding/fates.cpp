#include "windlass/search/exact/sharding/fates.h"

#include <algorithm>

#include "windlass/graph/op_info.h"

namespace windlass {

FateRules::FateRules(const TrainingGraph& training, const TrainingFacts& facts, size_t devices)
    : training_(training), facts_(facts), one_device_(devices == 1) {
  find_readers();
  find_wanted();
  find_apart();
  for (size_t i = 0; i < training.forward_ops; ++i) fates_.push_back(list_fates(i));
}

bool FateRules::is_view(size_t i) const { return op_info(training_.graph.ops[i].kind).view; }

bool FateRules::is_stored(TensorId tensor) const {
  return facts_.saved_index[tensor.index()] >= 0 && facts_.roots[tensor.index()] == tensor;
}

bool FateRules::reads_back(size_t i, TensorId tensor) const {
  if (!backward_[i].valid()) return false;
  const Op& op = training_.graph[backward_[i]];
  const size_t gradients = op.inputs.size() - op.saved.size();
  return std::find(op.inputs.begin() + static_cast<std::ptrdiff_t>(gradients), op.inputs.end(),
                   tensor) != op.inputs.end();
}

void FateRules::find_readers() {
  const Graph& graph = training_.graph;
  const size_t count = training_.forward_ops;
  backward_.resize(count);
  for (size_t i = count; i < count + training_.backward_ops; ++i)
    if (const OpId forward = graph.ops[i].forward; forward.valid())
      backward_[forward.index()] = OpId(i);
  readers_.resize(count);
  for (size_t i = 0; i < count; ++i)
    for (TensorId id : graph.ops[i].inputs)
      if (id.valid() && facts_.origin[id.index()] == TrainingFacts::Origin::Made)
        readers_[graph[id].producer.index()].push_back(i);
}

// Backwards: what reads an op comes after it.
void FateRules::find_wanted() {
  const Graph& graph = training_.graph;
  const size_t count = training_.forward_ops;
  read_back_.assign(count, false);
  may_again_.assign(count, false);
  wanted_.assign(count, false);
  for (size_t i = count; i-- > 0;) {
    const Op& op = graph.ops[i];
    wanted_[i] =
        std::ranges::any_of(readers_[i], [&](size_t reader) { return may_again_[reader]; });
    if (is_view(i)) {
      const TensorId seen = op.outputs[0];
      read_back_[i] = std::ranges::any_of(readers_[i], [&](size_t reader) {
        return reads_back(reader, seen) || (is_view(reader) && read_back_[reader]);
      });
      const bool owned = graph[facts_.roots[seen.index()]].producer.valid();
      const bool saved = facts_.saved_index[seen.index()] >= 0;
      may_again_[i] = wanted_[i] || (read_back_[i] && saved && owned);
      if (read_back_[i] && !saved && !one_device_) possible_ = false;
      continue;
    }
    may_again_[i] = wanted_[i];
    for (const auto* ids : {&op.outputs, &op.auxiliaries})
      for (TensorId id : *ids) {
        if (!id.valid()) continue;
        may_again_[i] = may_again_[i] || is_stored(id);
        if (facts_.roots[id.index()] != id) possible_ = false;
      }
  }
}

// On one device, what goes to the host goes in the only layout there is. Elsewhere it goes in the
// layouts in which backward ops read it, so that an op that is run again and whose backward op does
// not read it finds it on the device, or not at all.
void FateRules::find_apart() {
  const Graph& graph = training_.graph;
  apart_.assign(training_.forward_ops, false);
  if (one_device_) return;
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    if (is_view(i) || !may_again_[i]) continue;
    for (TensorId id : graph.ops[i].inputs) {
      if (!id.valid() || facts_.saved_index[id.index()] < 0 || reads_back(i, id)) continue;
      const OpId owner = graph[facts_.roots[id.index()]].producer;
      if (owner.valid()) apart_[owner.index()] = true;
    }
  }
}

std::vector<Fate> FateRules::list_fates(size_t i) const {
  if (is_view(i)) return list_of_view(i);
  std::vector<Fate> fates = {Fate::Once};
  if (apart_[i]) fates.push_back(Fate::Away);
  if (may_again_[i]) fates.push_back(Fate::Again);
  return fates;
}

std::vector<Fate> FateRules::list_of_view(size_t i) const {
  const TensorId seen = training_.graph.ops[i].outputs[0];
  const OpId owner = training_.graph[facts_.roots[seen.index()]].producer;
  std::vector<Fate> fates;
  if (facts_.saved_index[seen.index()] < 0) {
    fates.push_back(Fate::Gone);
    if (wanted_[i]) fates.push_back(Fate::Again);
    return fates;
  }
  if (!read_back_[i]) fates.push_back(Fate::Gone);
  if (!read_back_[i] && !wanted_[i]) return fates;
  fates.push_back(Fate::Once);
  if (!owner.valid()) return fates;
  if (apart_[owner.index()]) fates.push_back(Fate::Away);
  fates.push_back(Fate::Again);
  return fates;
}

FateRules::Place FateRules::place_of(size_t op, Fate fate, TensorId tensor) const {
  if (fate == Fate::Again) return Place::Again;
  if (fate == Fate::Gone || (!is_view(op) && !is_stored(tensor))) return Place::Nowhere;
  return fate == Fate::Away ? Place::OnHost : Place::AsItWas;
}

FateRules::Meeting FateRules::meet(size_t from, Fate from_fate, TensorId tensor, size_t to,
                                   Fate to_fate) const {
  const Place place = place_of(from, from_fate, tensor);
  const bool there = place == Place::AsItWas || place == Place::OnHost;
  if (is_view(to)) {
    switch (to_fate) {
      case Fate::Once: return {.allowed = place == Place::AsItWas, .kept = true};
      case Fate::Away: return {.allowed = place == Place::OnHost, .kept = true};
      case Fate::Again: return {.allowed = place == Place::Again, .again = true};
      case Fate::Gone: break;
    }
    return {};
  }
  const bool reads = reads_back(to, tensor), again = to_fate == Fate::Again;
  Meeting meeting;
  meeting.allowed = !again || (place != Place::Nowhere && (place != Place::OnHost || reads));
  meeting.kept = there && (reads || again);
  meeting.again = place == Place::Again && (reads || again);
  return meeting;
}

bool FateRules::holds_data(size_t i, size_t k, Fate fate) const {
  const TensorId id = training_.graph.ops[i].inputs[k];
  if (!id.valid() || facts_.origin[id.index()] != TrainingFacts::Origin::Data) return false;
  const bool held = fate == Fate::Again || (fate == Fate::Once && is_view(i) && !read_back_[i]);
  if (!held || reads_back(i, id)) return false;
  return facts_.saved_index[id.index()] < 0 || !one_device_;
}

std::vector<int32_t> FateRules::look_of(size_t i) const {
  const Op& op = training_.graph.ops[i];
  std::vector<int32_t> look;
  for (Fate fate : fates_[i]) look.push_back(static_cast<int32_t>(fate));
  look.push_back(read_back_[i] ? 1 : 0);
  for (size_t k = 0; k < op.inputs.size(); ++k) {
    look.push_back(op.inputs[k].valid() && reads_back(i, op.inputs[k]) ? 1 : 0);
    look.push_back(holds_data(i, k, Fate::Again) ? 1 : 0);
  }
  return look;
}

}  // namespace windlass
