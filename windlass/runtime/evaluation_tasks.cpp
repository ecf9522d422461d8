#include "windlass/runtime/evaluation_tasks.h"

#include <algorithm>
#include <span>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

bool uses_batch_statistics(const Op& op) {
  const auto* norm = std::get_if<BatchNormAttrs>(&op.attrs);
  return norm != nullptr && norm->training;
}

// Goes backward over the tasks: those that write what is needed are needed, and need what they
// read.
class ForwardTasks {
 public:
  ForwardTasks(const TrainingGraph& training, const SimulatedStep& step)
      : training_(training),
        all_(step.tasks),
        times_(step.times),
        roots_(storage_roots(training.graph)),
        needed_(all_.buffers.size()),
        kept_(all_.size()) {}

  SimulatedStep make() {
    choose();
    SimulatedStep made;
    made.tasks = all_;
    made.tasks.clear_tasks();
    made.tasks.buffers = all_.buffers;
    made.tasks.views = all_.views;
    std::vector<TaskId> number(all_.size());
    last_write_.resize(all_.buffers.size());
    readers_.resize(all_.buffers.size());
    for (size_t i = 0; i < all_.size(); ++i) {
      if (!kept_[i]) continue;
      const TaskId id(i);
      const std::vector<Use> uses = uses_of(id);
      const TaskId next(made.tasks.size());
      std::vector<TaskId> before = hazards(next, uses);
      for (TaskId other : all_.predecessors_of(id))
        if (kept_[other.index()]) before.push_back(number[other.index()]);
      std::ranges::sort(before);
      before.erase(std::unique(before.begin(), before.end()), before.end());
      number[i] = made.tasks.add(all_[id], all_.lanes_of(id), before, uses);
      made.times.duration.push_back(times_.duration[i]);
      made.times.workspace.push_back(times_.workspace[i]);
    }
    drop_unused_inputs(made.tasks);
    check_task_graph(made.tasks);
    return made;
  }

 private:
  // Auxiliaries are for the backward pass; a batch norm exchanges nothing.
  std::vector<Use> uses_of(TaskId id) const {
    std::vector<Use> uses;
    const Task& task = all_[id];
    const bool norm = task.op.valid() && uses_batch_statistics(training_.graph[task.op]);
    for (const Use& use : all_.uses_of(id))
      if (use.kind != UseKind::Auxiliary && !(norm && use.kind == UseKind::Statistics))
        uses.push_back(use);
    return uses;
  }

  bool makes_loss(TaskId id) const {
    if (all_[id].kind != TaskKind::Forward) return false;
    const TensorId loss = roots_[training_.graph.loss.index()];
    return std::ranges::any_of(all_.uses_of(id), [&](const Use& use) {
      return use.write && use.kind == UseKind::Output && all_[use.buffer].tensor == loss;
    });
  }

  void choose() {
    for (size_t i = all_.size(); i-- > 0;) {
      const TaskId id(i);
      const std::vector<Use> uses = uses_of(id);
      const bool writes = std::ranges::any_of(
          uses, [&](const Use& use) { return use.write && needed_[use.buffer.index()]; });
      if (!writes && !makes_loss(id)) continue;
      const TaskKind kind = all_[id].kind;
      const bool forward = kind == TaskKind::Forward || kind == TaskKind::Join ||
                           kind == TaskKind::Collective || kind == TaskKind::Gather ||
                           kind == TaskKind::Send || kind == TaskKind::SwapOut ||
                           kind == TaskKind::SwapIn;
      if (!forward || all_[id].group < 0)
        fail_unsupported("the loss follows from a task of the kind \"{}\"", task_kind_name(kind));
      kept_[i] = true;
      for (const Use& use : uses)
        if (!use.write || use.adds) needed_[use.buffer.index()] = true;
    }
  }

  // Tasks before it that write what it uses, or use what it writes.
  std::vector<TaskId> hazards(TaskId id, std::span<const Use> uses) {
    std::vector<TaskId> before;
    for (const Use& use : uses) {
      const size_t b = use.buffer.index();
      if (last_write_[b].valid() && last_write_[b] != id) before.push_back(last_write_[b]);
      if (use.write)
        for (TaskId reader : readers_[b])
          if (reader != id) before.push_back(reader);
    }
    for (const Use& use : uses) {
      const size_t b = use.buffer.index();
      if (use.write) {
        last_write_[b] = id;
        readers_[b].clear();
      } else {
        readers_[b].push_back(id);
      }
    }
    return before;
  }

  // Data of the step that nobody reads would be live all the time.
  static void drop_unused_inputs(TaskGraph& graph) {
    std::vector<bool> used(graph.buffers.size());
    for (const Use& use : graph.uses) used[use.buffer.index()] = true;
    for (size_t b = 0; b < graph.buffers.size(); ++b)
      if (!graph.buffers[b].at_end && !used[b]) graph.buffers[b].at_start = false;
  }

  const TrainingGraph& training_;
  const TaskGraph& all_;
  const TaskTimes& times_;
  const std::vector<TensorId> roots_;
  std::vector<bool> needed_;  // by buffer
  std::vector<bool> kept_;    // by task
  std::vector<TaskId> last_write_;
  std::vector<std::vector<TaskId>> readers_;  // since the last write
};

}  // namespace

TrainingGraph evaluation_graph(const TrainingGraph& training) {
  TrainingGraph graph = training;
  for (size_t i = 0; i < graph.forward_ops; ++i) {
    Op& op = graph.graph.ops[i];
    if (auto* norm = std::get_if<BatchNormAttrs>(&op.attrs); norm && norm->training) {
      norm->training = false;
      op.auxiliaries.clear();
    }
    if (auto* dropout = std::get_if<DropoutAttrs>(&op.attrs)) dropout->ratio = 0;
    if (auto* attention = std::get_if<AttentionAttrs>(&op.attrs)) attention->dropout = 0;
  }
  if (training.unequal)
    graph.unequal = std::make_shared<const UnequalMicroBatches>(
        UnequalMicroBatches{training.unequal->count, training.unequal->batch,
                            evaluation_graph(training.unequal->smaller)});
  return graph;
}

SimulatedStep evaluation_step(const TrainingGraph& training, const SimulatedStep& step) {
  SimulatedStep made = ForwardTasks(training, step).make();
  Simulator simulator;
  made.result = simulator.run(made.tasks, made.times);
  if (made.result.status != SimStatus::Done)
    fail_unsupported("the forward pass does not fit by itself");
  return made;
}

}  // namespace windlass
