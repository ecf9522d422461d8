#include "windlass/runtime/program.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {
namespace {

class ProgramMaker {
 public:
  ProgramMaker(const TrainingGraph& training, const TaskGraph& tasks)
      : training_(training), tasks_(tasks) {
    written_.resize(tasks.buffers.size());
    for (size_t i = 0; i < tasks.buffers.size(); ++i) written_[i] = tasks.buffers[i].at_start;
    update_of_.assign(training.graph.tensors.size(), -1);
    const size_t first = training.forward_ops + training.backward_ops;
    for (size_t i = first; i < training.graph.ops.size(); ++i)
      update_of_[training.graph.ops[i].inputs[0].index()] = static_cast<int32_t>(i - first);
  }

  Program run() {
    Program program;
    program.tasks.reserve(tasks_.size());
    for (size_t i = 0; i < tasks_.size(); ++i) program.tasks.push_back(make(TaskId(i)));
    return program;
  }

 private:
  ProgramTask make(TaskId id) {
    const Task& task = tasks_[id];
    uses_ = tasks_.uses_of(id);
    at_ = 0;
    ProgramTask made = {.kind = task.kind, .op = task.op, .micro_batch = task.micro_batch};
    switch (task.kind) {
      case TaskKind::Forward:
      case TaskKind::Recompute: {
        const Op& op = training_.graph[task.op];
        read_all(op.inputs, made.reads);
        write_all(op.outputs, made.writes);
        write_all(op.auxiliaries, made.writes);
        break;
      }
      case TaskKind::Backward:
        if (task.op.valid()) {
          const Op& op = training_.graph[task.op];
          read_all(op.inputs, made.reads);
          write_all(op.outputs, made.writes);
        } else {
          // A gradient that others read too is added to a sum.
          made.reads.push_back({next(), task.tensor});
          made.writes.push_back(result(task.tensor));
        }
        break;
      case TaskKind::Update: updates(made); break;
      case TaskKind::HostUpdate: host_updates(made); break;
      case TaskKind::Compress:
      case TaskKind::Decompress:
      case TaskKind::SwapIn:
      case TaskKind::SwapOut: copies(made); break;
      case TaskKind::Collective:
      case TaskKind::Reduce:
      case TaskKind::Gather:
      case TaskKind::Send:
        fail_unsupported("{}: tasks between devices cannot be run yet", task_kind_name(task.kind));
    }
    ensure(at_ == uses_.size(), "a task uses buffers that are no operands of it");
    for (const Use& use : uses_)
      if (use.write) written_[use.buffer.index()] = true;
    return made;
  }

  BufferId next() {
    ensure(at_ < uses_.size(), "a task lacks a buffer for an operand");
    return uses_[at_++].buffer;
  }
  Operand result(TensorId tensor) {
    const BufferId buffer = next();
    return {buffer, tensor, written_[buffer.index()]};
  }
  void read_all(const std::vector<TensorId>& tensors, std::vector<Operand>& into) {
    for (TensorId tensor : tensors) {
      Operand operand;
      if (tensor.valid()) operand = {next(), tensor};
      into.push_back(operand);
    }
  }
  void write_all(const std::vector<TensorId>& tensors, std::vector<Operand>& into) {
    for (TensorId tensor : tensors) {
      Operand operand;
      if (tensor.valid()) operand = result(tensor);
      into.push_back(operand);
    }
  }

  // What is read and what is written come in the same order.
  void copies(ProgramTask& made) {
    for (; at_ < uses_.size(); ++at_) {
      const BufferId buffer = uses_[at_].buffer;
      (uses_[at_].write ? made.writes : made.reads)
          .push_back({buffer, tasks_[buffer].tensor, false});
    }
    if (made.reads.size() != made.writes.size())
      fail_unsupported("{}: pages of {} buffers go to {} places, which cannot be run",
                       task_kind_name(made.kind), made.reads.size(), made.writes.size());
  }

  // Of each weight: gradients, the weight, its state.
  void updates(ProgramTask& made) {
    while (at_ < uses_.size()) {
      WeightUpdate update;
      while (at_ < uses_.size() && !uses_[at_].write) update.gradients.push_back(next());
      ensure(!update.gradients.empty(), "a weight is updated without a gradient");
      update.weight = next();
      update.update = update_index(tasks_[update.weight].tensor);
      if (at_ < uses_.size() && uses_[at_].write) update.state = next();
      made.updates.push_back(std::move(update));
    }
  }

  // All gradients, then the states of those that have one, then the weights that rest on the host.
  void host_updates(ProgramTask& made) {
    while (at_ < uses_.size() && !uses_[at_].write) {
      WeightUpdate update;
      update.gradients.push_back(next());
      update.update = update_index(tasks_[update.gradients[0]].tensor);
      made.updates.push_back(std::move(update));
    }
    while (at_ < uses_.size()) {
      const BufferId buffer = next();
      const int32_t index = update_index(tasks_[buffer].tensor);
      const auto found = std::ranges::find(made.updates, index, &WeightUpdate::update);
      ensure(found != made.updates.end(), "the host updates a weight without a gradient");
      (tasks_[buffer].kind == BufferKind::OptimizerState ? found->state : found->weight) = buffer;
    }
  }

  int32_t update_index(TensorId weight) const {
    const int32_t index = update_of_[weight.index()];
    ensure(index >= 0, "a tensor is updated that is not trained");
    return index;
  }

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  std::vector<bool> written_;       // by buffer
  std::vector<int32_t> update_of_;  // by tensor
  std::span<const Use> uses_;
  size_t at_ = 0;
};

}  // namespace

Program make_program(const TrainingGraph& training, const TaskGraph& tasks) {
  return ProgramMaker(training, tasks).run();
}

}  // namespace windlass
