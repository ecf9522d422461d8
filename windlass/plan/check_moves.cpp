// Weights and their gradients on their way between devices and host.

#include <algorithm>

#include "windlass/plan/checker.h"

namespace windlass {

// Gradients to the host, or weights and states back to it after an update on the device.
void Checker::swap_gradients(TaskId id) {
  const auto uses = graph_.uses_of(id);
  std::map<BufferId, int> filled;
  for (const Use& use : uses) {
    const Buffer& buffer = graph_[use.buffer];
    if (!use.write) continue;
    if (!on_host(use.buffer)) complain("{}: writes {}", name(id), name(use.buffer));
    Held& held = held_[use.buffer.index()];
    if (buffer.kind == BufferKind::WeightGradient) {
      filled[use.buffer] = 0;
      if (held.there) complain("{}: overwrites {}", name(id), name(use.buffer));
      take(held, {.tensor = buffer.tensor});
      held.sender = team_of(id);
    }
    if (buffer.kind != BufferKind::Weight && buffer.kind != BufferKind::OptimizerState) continue;
    const auto source = std::ranges::find_if(uses, [&](const Use& other) {
      return !other.write && graph_[other.buffer].kind == buffer.kind &&
             graph_[other.buffer].tensor == buffer.tensor;
    });
    if (source == uses.end())
      complain("{}: writes {} out of nothing", name(id), name(use.buffer));
    else if (buffer.kind == BufferKind::Weight)
      held.version = held_[source->buffer.index()].version;
  }
  if (filled.empty()) return;
  for (const Use& use : uses) {
    if (use.write) continue;
    Held& held = held_[use.buffer.index()];
    BufferId best;
    for (const auto& [b, count] : filled)
      if (belongs(use.buffer, facts_.update_of[graph_[b].tensor.index()]) &&
          (!best.valid() || count < filled[best]))
        best = b;
    if (!is_gradient(use.buffer) || !best.valid()) {
      complain("{}: reads {}, which is no gradient of its weights", name(id), name(use.buffer));
      continue;
    }
    ++filled[best];
    held_[best.index()].terms += held.terms;
    const int32_t update = facts_.update_of[graph_[best].tensor.index()];
    const int32_t group = group_of_team(team_of(id), update);
    const int32_t layout = group < 0 ? -1 : weight_layout(update, group);
    if (held.steps > 0 && layout >= 0 && !settle(held, use.buffer, layout, group))
      complain("{}: {}", name(id), reason_);
    if (held.steps == 0 && held.layout >= 0 && layouts_.partial(held.layout))
      complain("{}: copies {} before its partial sums are reduced", name(id), name(use.buffer));
    const int64_t parts = share_parts(update);
    const TensorType& type = training_.graph[update_op(update).inputs[1]].type;
    const int64_t share =
        layout < 0 ? 0 : (layouts_.elements(type.shape, layout) + parts - 1) / parts;
    if (graph_[best].bytes.value < share * element_bytes(type.dtype))
      complain("{}: {} has {} bytes, too few for {} elements", name(id), name(best),
               graph_[best].bytes.value, share);
  }
}

// Weights to where they are used: over their replicas, from the host, or back after an update.
void Checker::bring_weights(TaskId id) {
  const auto uses = graph_.uses_of(id);
  const bool gathers = graph_[id].kind == TaskKind::Gather;
  int64_t bytes = 0;
  int32_t group = -1, layout = -1;
  std::vector<MemberDigit> digits;
  for (const Use& use : uses) {
    if (!use.write) continue;
    const Buffer& buffer = graph_[use.buffer];
    Held& held = held_[use.buffer.index()];
    const int32_t u = facts_.update_of[buffer.tensor.index()];
    const bool state = buffer.kind == BufferKind::OptimizerState;
    if (u < 0 || (buffer.kind != BufferKind::Weight && !state)) {
      complain("{}: writes {}, which is no weight", name(id), name(use.buffer));
      continue;
    }
    const TeamId team = graph_[buffer.memory].team;
    const int32_t here = team.valid() ? group_of_team(team, u) : -1;
    if (!state && buffer.memory == memory_of(id)) {
      // The layout is that of the group that updates; streamed weights lie the same way everywhere.
      const OpId producer = training_.graph[facts_.terms[static_cast<size_t>(u)][0]].producer;
      group = here >= 0 ? here : group_of(producer, true);
      const int32_t before = layout;
      layout = weight_layout(u, group);
      if (layout >= 0)
        bytes += layouts_.elements(shape(buffer.tensor), layout) *
                 element_bytes(training_.graph[buffer.tensor].type.dtype);
      const auto here_digits = shared_over(u);
      if (before < 0) digits = here_digits;
      if (gathers && before >= 0 && layout >= 0 && digits != here_digits)
        complain("{}: gathers \"{}\" with others that have other replicas", name(id),
                 name(buffer.tensor));
    }
    if (!buffer.at_start) {
      bool found = false;
      for (const Use& other : uses) {
        const Buffer& rest = graph_[other.buffer];
        if (other.write || rest.kind != buffer.kind || rest.tensor != buffer.tensor) continue;
        found = true;
        const auto copies = static_cast<int64_t>(
            gathers && group >= 0 ? strategy_.groups[static_cast<size_t>(group)].size() : 1);
        if ((rest.bytes.value + 511) / 512 * 512 * copies < buffer.bytes.value)
          complain("{}: {} is too small for {}", name(id), name(other.buffer), name(use.buffer));
        if (held_[other.buffer.index()].version != Held::Version::Old)
          complain("{}: reads \"{}\" after its update", name(id), name(buffer.tensor));
      }
      if (!found) complain("{}: fills {} out of nothing", name(id), name(use.buffer));
      if (held.there) complain("{}: overwrites {}", name(id), name(use.buffer));
      take(held, {.tensor = buffer.tensor});
    } else if (gathers) {
      if (held.version != Held::Version::Share)
        complain("{}: gathers \"{}\", which is {}", name(id), name(buffer.tensor),
                 held.version == Held::Version::Old ? "not updated yet" : "whole already");
      held.version = Held::Version::New;
    } else {
      const auto& done = updated_[static_cast<size_t>(u)];
      const auto own = std::ranges::find(done, team, &std::pair<TeamId, TaskId>::first);
      if (own == done.end() || !clock_->before(own->second))
        complain("{}: brings \"{}\" back before its update", name(id), name(buffer.tensor));
      const bool made = own != done.end() && std::ranges::any_of(uses, [&](const Use& other) {
                          return !other.write && graph_[other.buffer].tensor == buffer.tensor &&
                                 held_[other.buffer.index()].version == Held::Version::New &&
                                 writes(own->second, other.buffer);
                        });
      if (!made) complain("{}: brings \"{}\" back from nowhere", name(id), name(buffer.tensor));
      if (held.version != Held::Version::Old)
        complain("{}: \"{}\" is updated already", name(id), name(buffer.tensor));
      held.version = after_update(u);
    }
  }
  if (gathers && group >= 0 && layout >= 0)
    check_traffic(id, Collective::AllGather, group, digits, bytes,
                  "a gather over all replicas of these weights");
}

// Copies on other groups after the update.
void Checker::send_weights(TaskId id) {
  const TensorId tensor = graph_[id].tensor;
  for (const Use& use : graph_.uses_of(id)) {
    Held& held = held_[use.buffer.index()];
    if (graph_[use.buffer].tensor != tensor || graph_[use.buffer].kind != BufferKind::Weight)
      complain("{}: uses {}", name(id), name(use.buffer));
    if (use.write && held.version != Held::Version::Old)
      complain("{}: \"{}\" is new there already", name(id), name(tensor));
    if (use.write)
      held.version = Held::Version::New;
    else if (held.version != Held::Version::New)
      complain("{}: sends \"{}\" before its update is complete", name(id), name(tensor));
  }
}

void Checker::check_updates() {
  for (size_t u = 0; u < updated_.size(); ++u) {
    const auto update = static_cast<int32_t>(u);
    std::vector<TeamId> teams;
    for (const auto& [team, task] : updated_[u]) teams.push_back(team);
    std::ranges::sort(teams);
    bool right = false;
    for (TensorId term : facts_.terms[u]) {
      const OpId producer = training_.graph[term].producer;
      std::vector<TeamId> expected =
          teams_[static_cast<size_t>(producer.valid() ? group_of(producer, true) : 0)];
      std::ranges::sort(expected);
      right = right || expected == teams;
    }
    if (right) continue;
    complain(
        "\"{}\" is updated {} times, expected once on each team of one group that makes its "
        "gradient",
        name_of_weight(update), teams.size());
  }
  for (size_t b = 0; b < held_.size(); ++b) {
    const Buffer& buffer = graph_.buffers[b];
    const bool counts = buffer.kind == BufferKind::Weight && buffer.at_end &&
                        facts_.update_of[buffer.tensor.index()] >= 0;
    if (!counts || held_[b].version == Held::Version::New) continue;
    complain("{} is {} at the end of the step", name(BufferId(b)),
             held_[b].version == Held::Version::Old ? "not new" : "new in one share only");
  }
}

// Every op of the forward and of the backward pass once for each micro-batch and team.
void Checker::check_coverage() {
  using Key = std::tuple<TaskKind, OpId, int32_t, TeamId>;
  std::vector<Key> found, expected, again;
  std::map<std::pair<OpId, int32_t>, int32_t> exchanges, recomputed;
  for (size_t i = 0; i < graph_.size(); ++i) {
    const Task& task = graph_.tasks[i];
    const Key key{task.kind, task.op, task.micro_batch, team_of(TaskId(i))};
    if (!task.op.valid()) continue;
    if (task.kind == TaskKind::Forward || task.kind == TaskKind::Backward) found.push_back(key);
    if (task.kind == TaskKind::Recompute) again.push_back(key);
    if (task.kind == TaskKind::Collective) ++exchanges[{task.op, task.micro_batch}];
  }
  for (size_t i = 0; i < training_.forward_ops + training_.backward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    if (facts_.view(op) || facts_.dropped[i]) continue;
    const bool backward = i >= training_.forward_ops;
    for (int32_t m = 0; m < strategy_.micro_batches; ++m)
      for (TeamId team : teams_[static_cast<size_t>(group_of(OpId(i), backward))])
        expected.emplace_back(backward ? TaskKind::Backward : TaskKind::Forward, OpId(i), m, team);
  }
  for (auto* list : {&found, &expected, &again}) std::ranges::sort(*list);
  const auto report = [&](const std::vector<Key>& a, const std::vector<Key>& b, const char* what) {
    std::vector<Key> extra;
    std::ranges::set_difference(a, b, std::back_inserter(extra));
    for (const auto& [kind, op, m, team] : extra)
      complain("{} of \"{}\", micro-batch {}, on {}: {}", task_kind_name(kind),
               training_.graph[op].name, m, graph_[graph_[team].memory].name, what);
  };
  report(expected, found, "nobody does it");
  report(found, expected, "done once too often");
  std::vector<Key> once = again;
  once.erase(std::unique(once.begin(), once.end()), once.end());
  report(again, once, "done once too often");
  for (const auto& [kind, op, m, team] : once) recomputed[{op, m}] = 1;
  for (size_t i = 0; i < training_.forward_ops + training_.backward_ops; ++i) {
    const Op& op = training_.graph.ops[i];
    const bool backward = i >= training_.forward_ops;
    if (facts_.view(op) || (backward && !op.forward.valid())) continue;
    const OpLayouts& layouts = layouts_.of(backward ? op.forward : OpId(i));
    const bool coupled = backward ? layouts.backward_coupled : layouts.coupled;
    for (int32_t m = 0; m < strategy_.micro_batches; ++m) {
      const int32_t wanted = coupled ? 1 + (recomputed.contains({OpId(i), m}) ? 1 : 0) : 0;
      const auto there = exchanges.find({OpId(i), m});
      const int32_t count = there == exchanges.end() ? 0 : there->second;
      if (count != wanted)
        complain("\"{}\", micro-batch {}: its pieces exchange values {} times, expected {}",
                 op.name, m, count, wanted);
    }
  }
}

}  // namespace windlass
