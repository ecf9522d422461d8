#include "windlass/runtime/program.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {
namespace {

ProgramTask make(const TrainingGraph& training, const TaskGraph& tasks, TaskId id) {
  const Task& task = tasks[id];
  ProgramTask made = {.kind = task.kind, .op = task.op, .micro_batch = task.micro_batch};
  if (task.kind == TaskKind::Compress || task.kind == TaskKind::Decompress) made.bits = task.how;
  const size_t first_update = training.forward_ops + training.backward_ops;
  const auto put = [](std::vector<Operand>& list, size_t at, const Operand& operand) {
    if (list.size() <= at) list.resize(at + 1);
    list[at] = operand;
  };
  const auto update = [&](uint32_t index) -> WeightUpdate& {
    const auto found =
        std::ranges::find(made.updates, static_cast<int32_t>(index), &WeightUpdate::update);
    if (found != made.updates.end()) return *found;
    made.updates.push_back({.update = static_cast<int32_t>(index)});
    return made.updates.back();
  };
  const Op* op = task.op.valid() ? &training.graph[task.op] : nullptr;
  if (op != nullptr && op->kind != OpKind::Accumulate) {
    made.reads.resize(op->inputs.size());
    made.writes.resize(op->outputs.size() +
                       (op->pass == Pass::Forward ? op->auxiliaries.size() : 0));
  }
  for (const Use& use : tasks.uses_of(id)) {
    const TensorId held =
        use.view < 0 ? tasks[use.buffer].tensor : tasks.views[static_cast<size_t>(use.view)].tensor;
    const size_t index = use.index;
    switch (use.kind) {
      case UseKind::Input: put(made.reads, index, {use.buffer, op->inputs[index]}); break;
      case UseKind::Output:
        put(made.writes, index, {use.buffer, op->outputs[index], use.adds});
        break;
      case UseKind::Auxiliary:
        put(made.writes, op->outputs.size() + index, {use.buffer, op->auxiliaries[index]});
        break;
      case UseKind::Statistics: fail_unsupported("pieces of an op cannot be run yet");
      case UseKind::Term: put(made.reads, index, {use.buffer, held}); break;
      case UseKind::Sum: put(made.writes, index, {use.buffer, held, use.adds}); break;
      case UseKind::From: put(made.reads, index, {use.buffer, held}); break;
      case UseKind::To: put(made.writes, index, {use.buffer, held}); break;
      case UseKind::Gradient: update(use.index).gradients.push_back(use.buffer); break;
      case UseKind::Weight: update(use.index).weight = use.buffer; break;
      case UseKind::State: update(use.index).state = use.buffer; break;
      case UseKind::Squares: put(made.squares, index, {use.buffer, held, use.adds}); break;
    }
  }
  for (const WeightUpdate& entry : made.updates)
    ensure(!entry.gradients.empty() &&
               first_update + static_cast<size_t>(entry.update) < training.graph.ops.size(),
           "a weight is updated without a gradient");
  return made;
}

}  // namespace

Program make_program(const TrainingGraph& training, const TaskGraph& tasks) {
  Program program;
  program.tasks.reserve(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskKind kind = tasks.tasks[i].kind;
    if (kind == TaskKind::Collective || kind == TaskKind::Reduce || kind == TaskKind::Gather ||
        kind == TaskKind::Send)
      fail_unsupported("{}: tasks between devices cannot be run yet", task_kind_name(kind));
    program.tasks.push_back(make(training, tasks, TaskId(i)));
  }
  return program;
}

}  // namespace windlass
