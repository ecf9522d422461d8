// Ops that begin, exchange statistics, and end.

#include <algorithm>

#include "windlass/base/hash.h"
#include "windlass/plan/checker.h"
#include "windlass/task/lower.h"

namespace windlass {

// Those of an op and micro-batch are the same whichever pass makes them.
uint64_t Checker::statistics_number(TaskId id) const {
  return Hasher().add(int64_t{11}).add(graph_[id].op.value).add(graph_[id].micro_batch).result();
}

bool Checker::check_statistics(BufferId id) {
  const Buffer& buffer = graph_[id];
  const int32_t group = group_of(id);
  const TeamId team = graph_[buffer.memory].team;
  if (buffer.kind != BufferKind::Communication || buffer.at_start || buffer.at_end ||
      buffer.share != 0 || buffer.layout >= 0 || group < 0 || !team.valid() ||
      std::ranges::find(teams_[static_cast<size_t>(group)], team) ==
          teams_[static_cast<size_t>(group)].end()) {
    complain("{} holds no tensor, and cannot hold statistics", name(id));
    return false;
  }
  return true;
}

// Statistics are used as such, and nothing else is. False if it cannot be looked at further.
bool Checker::uses_statistics_rightly(TaskId id) {
  const Task& task = graph_[id];
  const bool merges = task.kind == TaskKind::Collective && task.op.valid();
  const bool computes = !moves(task.kind) && task.op.valid();
  for (const Use& use : graph_.uses_of(id)) {
    const bool expected =
        merges ? use.kind == UseKind::From : computes && use.kind == UseKind::Statistics;
    if (are_statistics(use.buffer) == expected) continue;
    complain("{}: uses {} as {} {}", name(id), name(use.buffer), use_kind_name(use.kind),
             use.index);
    return false;
  }
  if (task.begins && !computes) complain("{}: begins no op", name(id));
  return true;
}

// Makes statistics, or ends with them; the multiply-adds that it took to make them.
double Checker::use_statistics(TaskId id, int32_t group) {
  const Task& task = graph_[id];
  const auto uses = graph_.uses_of(id);
  const auto use = std::ranges::find(uses, UseKind::Statistics, &Use::kind);
  if (use == uses.end()) {
    complain("{}: lacks the statistics that its pieces exchange", name(id));
    return 0;
  }
  const Buffer& buffer = graph_[use->buffer];
  Held& held = this->held(use->buffer);
  if (use->write != task.begins || use->adds || use->view >= 0 || use->index != 0 ||
      buffer.memory != memory_of(id) || group_of(use->buffer) != group ||
      buffer.micro_batch != task.micro_batch)
    complain("{}: uses {} for statistics", name(id), name(use->buffer));
  double& begun = begun_[use->buffer.index()];
  if (task.begins) {
    const auto member = static_cast<size_t>(members(team_of(id), group).front());
    const Bytes bytes = allocated(layouts_.of(task.op).exchanged_of[member]);
    if (held.there) complain("{}: overwrites {}", name(id), name(use->buffer));
    if (buffer.bytes != bytes)
      complain("{}: {} has {} bytes, statistics take {}", name(id), name(use->buffer),
               buffer.bytes.value, bytes.value);
    held.there = held.raw = true;
    held.content = statistics_number(id);
    for (const Kernel& kernel : graph_.works[static_cast<size_t>(task.price)].kernels)
      begun += kernel.multiply_adds;
  } else if (!held.there || held.content != statistics_number(id)) {
    complain("{}: {} does not hold its statistics", name(id), name(use->buffer));
  } else if (held.raw) {
    complain("{}: reads {} before the pieces of its op have exchanged them", name(id),
             name(use->buffer));
  }
  return begun;
}

// Statistics of the pieces become those of all, on every team.
void Checker::exchange(TaskId id) {
  const Task& task = graph_[id];
  const int32_t group = group_id(task.group);
  if (!in(task.how, graph_.movements) || group < 0)
    return complain("{}: does not say how statistics are exchanged", name(id));
  const Movement& how = graph_.movements[static_cast<size_t>(task.how)];
  const CheckOp& op = layouts_.of(task.op);
  const bool among = in(how.digits, graph_.digit_sets) && in(how.from_group, graph_.groups) &&
                     in(how.to_group, graph_.groups) && group_id(how.from_group) == group &&
                     group_id(how.to_group) == group && how.from_layout < 0 && how.to_layout < 0 &&
                     set_ids_[static_cast<size_t>(how.digits)] == op.digits;
  if (op.exchanged == 0 || how.pairwise || how.sums || how.collective != Collective::AllReduce ||
      !among)
    complain("{}: is not the exchange of its op", name(id));
  if (!everybody(id, UseKind::From, 0, group)) return;
  const auto uses = graph_.uses_of(id);
  if (uses.size() != teams_[static_cast<size_t>(group)].size())
    complain("{}: uses buffers that it does not exchange", name(id));
  for (const Use& use : uses) {
    Held& result = held(use.buffer);
    if (!use.write || use.adds || use.view >= 0 || !result.there || !result.raw ||
        result.content != statistics_number(id))
      complain("{}: {} holds no statistics that wait for it", name(id), name(use.buffer));
    result.raw = false;
  }
  if (op.exchanged > 0)
    check_traffic(id, moves_.collective(Collective::AllReduce, group, op.digits, op.exchanged),
                  "this exchange");
}

}  // namespace windlass
