// Bytes that a device holds in any case when its first backward pass begins.

#include <algorithm>

#include "windlass/search/bounds/step_bound_state.h"
#include "windlass/task/order.h"

namespace windlass {

void StepBound::State::list_saved_results() {
  saved_results.resize(training.saved.size());
  // Templates list only tensors that are there, in this order.
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    size_t at = 0;
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId id : *list) {
        if (!id.valid()) continue;
        const int32_t s = facts.saved_index[id.index()];
        if (s >= 0 && training.saved[static_cast<size_t>(s)].tensor == id)
          saved_results[static_cast<size_t>(s)].push_back({i, at});
        ++at;
      }
  }
}

void StepBound::State::count_in_flight() {
  in_flight.assign(strategy->stages.size(), 0);
  std::vector<bool> begun(strategy->stages.size(), false);
  for (const WorkItem& item : global_order(*strategy)) {
    const auto stage = static_cast<size_t>(item.stage);
    if (item.backward)
      begun[stage] = true;
    else if (!begun[stage])
      ++in_flight[stage];
  }
}

// The least of the layouts in which it may be kept.
int64_t StepBound::State::kept_bytes(size_t s) {
  const SavedTensor& saved = training.saved[s];
  const MemoryAction action = strategy->saved[s];
  if (!saved.producer.valid() || action == MemoryAction::Recompute ||
      action == MemoryAction::Offload)
    return 0;
  int64_t elements = INT64_MAX;
  for (const SavedResult& use : saved_results[s]) {
    const OpTemplate& made = made_of(use.op);
    if (use.result >= made.results().size() ||
        tables.tensors(OpId(use.op))[made.results()[use.result].place] != saved.tensor)
      return 0;
    elements = std::min(elements, made.results()[use.result].elements);
  }
  if (action == MemoryAction::Keep)
    for (OpId consumer : saved.consumers) {
      const Op& op = training.graph[consumer];
      if (!op.forward.valid()) return 0;
      for (const ReadTemplate& read : made_of(op.forward.index()).saved_reads())
        if (facts.saved_index[tables.tensors(op.forward)[read.place].index()] ==
            static_cast<int32_t>(s))
          elements = std::min(elements, read.want.elements);
    }
  if (elements == INT64_MAX) return 0;
  const int64_t size = facts.element_size[saved.tensor.index()];
  if (const int bits = compressed_bits(action); bits > 0) return elements * bits / 8;
  return elements * size;
}

// Of the weights that are used first in this stage.
int64_t StepBound::State::weight_bytes(size_t stage) {
  int64_t sum = 0;
  for (size_t i = strategy->stages[stage].first; i < strategy->stages[stage].last; ++i)
    for (int32_t u : updates_of[i]) {
      const auto at = static_cast<size_t>(u);
      const auto input = static_cast<size_t>(facts.first_use[at].second);
      const OpTemplate& made = made_of(i);
      const int64_t elements =
          tables.kept_weight(facts.updates[at].weight, made.inputs()[input]).elements;
      const int64_t parts =
          tables.members(tables.partial_digits(made.input_gradients()[input].layout));
      const Residency& residency = strategy->weights[at];
      if (!residency.host)
        sum += facts.updates[at].weight_size * elements / (residency.zero == 3 ? parts : 1);
      if (!residency.host && !residency.host_update)
        sum += facts.updates[at].state_size * elements / (residency.zero >= 1 ? parts : 1);
    }
  return sum;
}

bool StepBound::State::too_large(bool with_saved) {
  std::vector<int64_t>& bytes = group_bytes;
  bytes.assign(strategy->groups.size(), 0);
  for (size_t s = 0; s < strategy->stages.size(); ++s) {
    const Stage& stage = strategy->stages[s];
    use_group(strategy->groups[static_cast<size_t>(stage.group)]);
    bytes[static_cast<size_t>(stage.group)] += weight_bytes(s);
  }
  // Several stages on one group reach their first backward pass at different moments: the weights
  // are all there, and what is kept of one of them.
  std::vector<int64_t> kept(strategy->stages.size(), 0);
  if (with_saved) keep_saved(kept);
  for (size_t s = 0; s < kept.size(); ++s) {
    const auto at = static_cast<size_t>(strategy->stages[s].group);
    int64_t limit = INT64_MAX;
    for (DeviceId device : strategy->groups[at])
      limit = std::min(limit, usable_memory(problem.machine[device], *strategy).value);
    if (bytes[at] + kept[s] > limit) return true;
  }
  return false;
}

// By stage, of all micro-batches that are under way.
void StepBound::State::keep_saved(std::vector<int64_t>& kept) {
  if (in_flight.empty() || flight_batches != strategy->micro_batches) {
    count_in_flight();
    flight_batches = strategy->micro_batches;
  }
  for (size_t s = 0; s < training.saved.size(); ++s) {
    if (!training.saved[s].producer.valid()) continue;
    const auto stage = static_cast<size_t>(stage_of[training.saved[s].producer.index()]);
    // Kept on other groups in other layouts.
    const bool elsewhere = std::ranges::any_of(training.saved[s].consumers, [&](OpId op) {
      return stage_of[op.index()] != static_cast<int32_t>(stage);
    });
    if (elsewhere) continue;
    use_group(strategy->groups[static_cast<size_t>(strategy->stages[stage].group)]);
    kept[stage] += kept_bytes(s) * in_flight[stage];
  }
}

}  // namespace windlass
