// Computation in the eyes of the checker: passes over layers, and what they need.
#include <algorithm>
#include <cmath>

#include "windlass/plan/packs/pack_checker.h"

namespace windlass {

void PackChecker::compute(TaskId id) {
  const PackLabel& what = label(id);
  const TaskKind kind = graph_[id].kind;
  if (graph_[graph_.lanes_of(id).front()].kind != LaneKind::Compute)
    complain("{} is not on a compute lane", name(id));
  if (what.begin >= what.end) return complain("{} is of no samples", name(id));
  if (kind == TaskKind::Backward) return run_backward(id);
  if (what.what == PackData::Input && kind == TaskKind::Forward) return run_forward(id);
  if (what.what == PackData::Saved) return run_saved(id);
  complain("{}: no such pass", name(id));
}

std::optional<size_t> PackChecker::task_with(Pack layers, bool backward) const {
  const auto& packs = backward ? strategy_.backward_packs : strategy_.forward_packs;
  for (size_t p = 0; p < packs.size(); ++p)
    if (packs[p].first <= layers.first && layers.last <= packs[p].last)
      return backward ? strategy_.tasks() - 1 - p : p;
  return std::nullopt;
}

bool PackChecker::expect_team(TaskId id, size_t task) {
  const auto expected = static_cast<int32_t>(task % static_cast<size_t>(strategy_.depth));
  if (team_of(id) == expected) return true;
  complain("{}: its pack is for place {} of the pipeline", name(id), expected);
  return false;
}

void PackChecker::expect_time(TaskId id, double seconds, int64_t workspace) {
  const auto expected = std::max(1.0, seconds * 1e9);
  const auto found = static_cast<double>(steps_.times->duration[id.index()]);
  if (std::abs(found - expected) > 2 + 1e-9 * expected)
    complain("{} takes {} ns, expected {:.0f}", name(id), found, expected);
  if (steps_.times->workspace[id.index()] != workspace)
    complain("{}: {} bytes of workspace, expected {}", name(id),
             steps_.times->workspace[id.index()], workspace);
}

// Whether what the task reads covers its samples of a layer's input or its gradient.
bool PackChecker::reads(TaskId id, PackData what, int32_t layer, bool host) {
  SampleSet there;
  int64_t covered = label(id).begin;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Use& use : graph_.uses_of(id)) {
    const PackLabel& found = label(use.buffer);
    const bool placed =
        host ? on_host(use.buffer)
             : graph_[use.buffer].memory == graph_.teams[static_cast<size_t>(team_of(id))].memory;
    if (!use.write && found.what == what && found.layers.first == layer && placed &&
        held_[use.buffer.index()].there)
      ranges.emplace_back(found.begin, found.end);
  }
  std::ranges::sort(ranges);
  for (const auto& [begin, end] : ranges)
    if (begin <= covered) covered = std::max(covered, end);
  return covered >= label(id).end;
}

// Weights of all layers, until the task ends.
void PackChecker::need_weights(TaskId id) {
  const MemoryId memory = graph_.teams[static_cast<size_t>(team_of(id))].memory;
  BufferId known;
  for (int32_t l = label(id).layers.first; l <= label(id).layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    if (profile_.weights[at] + profile_.buffers[at] == 0) continue;
    for (BufferId buffer : weights_at_[memory.index()][at]) {
      if (buffer.valid() && buffer == known) continue;
      const Held* held = buffer.valid() ? &held_[buffer.index()] : nullptr;
      if (!held || !held->there || !held->whole || held->fresh || held->step != step_ ||
          held->last_use.index() < id.index()) {
        complain("{}: the weights of layer {} are not there", name(id), l);
        break;
      }
      known = buffer;
      touch(id, buffer, false);
    }
  }
}

void PackChecker::run_forward(TaskId id) {
  const PackLabel& what = label(id);
  const auto task = task_with(what.layers, false);
  if (!task) return complain("{}: no forward pack has these layers", name(id));
  expect_team(id, *task);
  if (!reads(id, PackData::Input, what.layers.first, false))
    complain("{}: its input is not there", name(id));
  need_weights(id);
  bool output = false;
  const MemoryId memory = graph_.teams[static_cast<size_t>(team_of(id))].memory;
  for (const Use& use : graph_.uses_of(id)) {
    if (!use.write) continue;
    const PackLabel& made = label(use.buffer);
    Held& held = held_[use.buffer.index()];
    const bool same =
        made.begin == what.begin && made.end == what.end && graph_[use.buffer].memory == memory;
    if (made.what == PackData::Input && same && made.layers.first > what.layers.first &&
        made.layers.first <= what.layers.last + 1) {
      held.there = true;
      output = output || made.layers.first == what.layers.last + 1;
    } else if (made.what == PackData::Saved && same) {
      const int32_t from = std::max(made.layers.first, what.layers.first);
      if (held.next < 0) held.next = made.layers.first;
      if (held.next != from) complain("{} leaves saved layers out", name(id));
      held.next = std::min(made.layers.last, what.layers.last) + 1;
      held.there = true;
    } else {
      complain("{} writes buffer {} ({})", name(id), use.buffer.value, name(made));
    }
  }
  if (!output) complain("{}: its output goes nowhere", name(id));
  double seconds = 0;
  int64_t workspace = 0;
  const Pass& costs = pass(true, what.end - what.begin);
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    seconds += costs.seconds[at];
    workspace = std::max(workspace, costs.working[at]);
    if (!state_[at].forward.add(what.begin, what.end))
      complain("{}: layer {} ran forward on these samples before", name(id), l);
  }
  expect_time(id, seconds, workspace);
}

// A pass that leaves what the backward pass needs: recomputing, or the first one of the loss pack.
void PackChecker::run_saved(TaskId id) {
  const PackLabel& what = label(id);
  const auto task = task_with(what.layers, true);
  if (!task) return complain("{}: no backward pack has these layers", name(id));
  expect_team(id, *task);
  const Pack pack = strategy_.backward_packs[strategy_.tasks() - 1 - *task];
  const bool loss = pack.last + 1 == layers_;
  const bool again = graph_[id].kind == TaskKind::Recompute;
  if (loss == again) complain("{}: the loss pack alone runs forward once", name(id));
  if (!reads(id, PackData::Input, pack.first, false))
    complain("{}: the input of its pack is not there", name(id));
  need_weights(id);
  int saved = 0;
  for (const Use& use : graph_.uses_of(id)) {
    if (!use.write) continue;
    const PackLabel& made = label(use.buffer);
    Held& held = held_[use.buffer.index()];
    if (made.what != PackData::Saved || made.layers != pack || made.begin != what.begin ||
        made.end != what.end ||
        graph_[use.buffer].memory != graph_.teams[static_cast<size_t>(team_of(id))].memory) {
      complain("{} writes buffer {} ({})", name(id), use.buffer.value, name(made));
      continue;
    }
    if (held.next < 0) held.next = pack.first;
    if (held.next != what.layers.first) complain("{} leaves saved layers out", name(id));
    held.next = what.layers.last + 1;
    held.there = true;
    ++saved;
  }
  if (saved != 1) complain("{} saves nothing", name(id));
  double seconds = 0;
  const Pass& costs = pass(true, what.end - what.begin);
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    seconds += costs.seconds[at];
    if (!(loss ? state_[at].forward : state_[at].recompute).add(what.begin, what.end))
      complain("{}: layer {} was computed for these samples before", name(id), l);
  }
  expect_time(id, seconds, 0);
}

void PackChecker::run_backward(TaskId id) {
  const PackLabel& what = label(id);
  const auto task = task_with(what.layers, true);
  if (!task) return complain("{}: no backward pack has these layers", name(id));
  expect_team(id, *task);
  const Pack pack = strategy_.backward_packs[strategy_.tasks() - 1 - *task];
  const MemoryId memory = graph_.teams[static_cast<size_t>(team_of(id))].memory;
  Held* saved = nullptr;
  bool output = pack.first == 0 || what.layers.first > pack.first;
  for (const Use& use : graph_.uses_of(id)) {
    const PackLabel& found = label(use.buffer);
    const bool same =
        found.begin == what.begin && found.end == what.end && graph_[use.buffer].memory == memory;
    if (!use.write) {
      if (same && found.what == PackData::Saved && found.layers == pack)
        saved = &held_[use.buffer.index()];
    } else if (found.what == PackData::Backward && same && found.layers.first == pack.first &&
               what.layers.first == pack.first) {
      held_[use.buffer.index()].there = true;
      output = true;
    } else if (found.what == PackData::Gradients && graph_[use.buffer].memory == memory) {
      for (int32_t l = found.layers.first; l <= found.layers.last; ++l)
        gradients_at_[memory.index()][static_cast<size_t>(l)][static_cast<size_t>(found.part)] =
            use.buffer;
      held_[use.buffer.index()].there = true;
    } else {
      complain("{} writes buffer {} ({})", name(id), use.buffer.value, name(found));
    }
  }
  if (!output) complain("{}: the gradient of its input goes nowhere", name(id));
  if (!reads(id, PackData::Input, pack.first, false))
    complain("{}: the input of its pack is not there", name(id));
  if (!saved || saved->next != pack.last + 1) {
    complain("{}: what its pack saved is not there", name(id));
  } else {
    const int32_t next = what.layers.last + 1;
    const bool top = what.layers.last == pack.last && saved->gradient_at < 0;
    if (!top && saved->gradient_at != next)
      complain("{}: the backward pass has not come to layer {}", name(id), what.layers.last);
    saved->gradient_at = what.layers.first;
  }
  if (pack.last + 1 < layers_ && !reads(id, PackData::Backward, pack.last + 1, false))
    complain("{}: the gradient of its pack's output is not there", name(id));
  need_weights(id);
  add_gradients(id);
  double seconds = 0;
  const Pass& forward = pass(true, what.end - what.begin);
  const Pass& backward = pass(false, what.end - what.begin);
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    seconds += backward.seconds[at] - forward.seconds[at];
    if (!state_[at].backward.add(what.begin, what.end))
      complain("{}: layer {} ran backward on these samples before", name(id), l);
  }
  expect_time(id, seconds, 0);
}

void PackChecker::add_gradients(TaskId id) {
  const PackLabel& what = label(id);
  const MemoryId memory = graph_.teams[static_cast<size_t>(team_of(id))].memory;
  BufferId touched;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    if (profile_.weights[at] == 0) continue;
    for (BufferId buffer : gradients_at_[memory.index()][at]) {
      if (!buffer.valid() || held_[buffer.index()].last_use.index() < id.index()) {
        complain("{}: there is no place for the gradients of layer {}", name(id), l);
        break;
      }
      Held& held = held_[buffer.index()];
      if (held.summed || held.done) complain("{} adds to gradients that have left", name(id));
      if (buffer != touched) touch(id, buffer, true);
      touched = buffer;
      const Pack layers = label(buffer).layers;
      held.terms.resize(static_cast<size_t>(layers.last - layers.first) + 1);
      if (!held.terms[static_cast<size_t>(l - layers.first)].add(what.begin, what.end))
        complain("{} adds gradients of layer {} twice", name(id), l);
    }
  }
}

}  // namespace windlass
