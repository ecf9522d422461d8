#include "windlass/task/reference/run_tasks.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/graph/reference/mean_counts.h"
#include "windlass/task/reference/exchange_values.h"
#include "windlass/task/reference/held_values.h"
#include "windlass/task/reference/statistics_exchange.h"
#include "windlass/task/reference/task_updates.h"

namespace windlass {
namespace {

using reference::HeldValues;

class TaskWalker {
 public:
  TaskWalker(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
             const StepStart& start)
      : training_(training),
        tasks_(tasks),
        start_(start),
        held_(training, machine, tasks),
        roots_(storage_roots(training.graph)),
        mean_counts_(
            mean_counts(graphs_of(training), start.batch, start.micro_batches, start.data)) {
    first_update_ = training.forward_ops + training.backward_ops;
    loss_buffers_.resize(parts() ? tasks.micro_batches.size()
                                 : static_cast<size_t>(start.micro_batches));
    for (size_t i = first_update_; i < training.graph.ops.size(); ++i)
      end_.gradients.emplace_back(shape(training.graph.ops[i].inputs[0]), std::nan(""));
  }

  StepEnd run() {
    for (size_t b = 0; b < tasks_.buffers.size(); ++b)
      if (tasks_.buffers[b].at_start) fill(BufferId(b));
    for (size_t i = 0; i < tasks_.size(); ++i) {
      try {
        visit(TaskId(i));
      } catch (const Error& error) {
        fail(error.kind(), "task {} ({}): {}", i, task_kind_name(tasks_.tasks[i].kind),
             error.message());
      }
    }
    finish();
    return std::move(end_);
  }

 private:
  const Shape& shape(TensorId id) const { return training_.graph[id].type.shape; }
  const Op& update_op(size_t update) const { return training_.graph.ops[first_update_ + update]; }
  TeamId team_of(TaskId id) const { return tasks_[tasks_.lanes_of(id)[0]].team; }
  // Whether micro-batches are parts of the batch that the training graph is of.
  bool parts() const { return !tasks_.micro_batches.empty(); }
  int32_t data_of(int32_t micro_batch) const { return parts() ? 0 : micro_batch; }

  // The whole tensors that a buffer begins with pieces of.
  std::vector<Array> whole_of(const Buffer& buffer) const {
    const Graph& graph = training_.of(buffer.micro_batch).graph;
    const Tensor& tensor = graph[buffer.tensor];
    if (buffer.kind == BufferKind::OptimizerState) {
      std::vector<Array> states;
      for (size_t i = first_update_; i < training_.graph.ops.size(); ++i)
        if (const Op& op = training_.graph.ops[i]; op.inputs[0] == buffer.tensor)
          for (size_t k = 2; k < op.inputs.size(); ++k)
            if (op.inputs[k].valid()) states.push_back(start_.values[op.inputs[k].index()]);
      return states;
    }
    if (buffer.tensor == training_.loss_gradient)
      return {Array(tensor.type.shape, 1.0 / start_.micro_batches)};
    if (tensor.constant >= 0)
      return {
          Array(tensor.type.shape, graph.constants[static_cast<size_t>(tensor.constant)].values)};
    if (buffer.kind == BufferKind::Input)
      return {start_.data(buffer.tensor, data_of(buffer.micro_batch))};
    return {start_.values[buffer.tensor.index()]};
  }

  void fill(BufferId id) {
    const Buffer& buffer = tasks_[id];
    const std::vector<Array> whole = whole_of(buffer);
    for (int64_t member : held_.members(id)) {
      HeldValues::Arrays arrays;
      for (const Array& array : whole) {
        Region all;
        for (int64_t size : array.shape) all.push_back({size, {0, size}, 1});
        Array piece = reference::cut(array, all, region_of(held_.layout(id), array.shape, member));
        if (buffer.share != 0) {
          const Range mine = held_.share(id, member, static_cast<int64_t>(piece.values.size()));
          piece = Array({mine.size()},
                        {piece.values.begin() + mine.begin, piece.values.begin() + mine.end});
        }
        arrays.push_back(std::move(piece));
      }
      held_.put(id, member, std::move(arrays));
    }
  }

  void visit(TaskId id) {
    const Task& task = tasks_[id];
    switch (task.kind) {
      case TaskKind::Forward:
      case TaskKind::Recompute: return compute(id);
      case TaskKind::Backward:
        if (!task.op.valid() || !training_.graph[task.op].forward.valid()) return sum(id);
        return compute(id);
      case TaskKind::Update:
      case TaskKind::HostUpdate: return updates_.update(id);
      case TaskKind::Norm: return updates_.add_squares(id);
      case TaskKind::Compress:
      case TaskKind::Decompress:  // what compression loses is not the graph's business
      case TaskKind::Join:
      case TaskKind::SwapOut:
      case TaskKind::SwapIn:
        return copy_values(held_, tasks_, id, held_.members(team_of(id), task.group));
      case TaskKind::Collective:
        if (task.op.valid()) return statistics_.merge(id);
        [[fallthrough]];
      case TaskKind::Send:
      case TaskKind::Reduce:
      case TaskKind::Gather: return reference::exchange_values(held_, tasks_, id);
    }
  }

  void compute(TaskId id) {
    const Task& task = tasks_[id];
    const Graph& graph = training_.of(task.micro_batch).graph;
    const Op& op = graph[task.op];
    const Op& forward = op.forward.valid() ? graph[op.forward] : op;
    const OpId forward_id = op.forward.valid() ? op.forward : task.op;
    const Signature signature = signature_of(graph, op);
    const LoopNest nest = loops_of(graph, op);
    const Sharding& sharding = tasks_.shardings[static_cast<size_t>(task.how)];
    const RandomState random =
        start_.random(forward_id, training_.unequal ? 0 : data_of(task.micro_batch));
    for (int64_t member : held_.members(team_of(id), task.group)) {
      std::vector<LoopPart> loops = loop_parts(nest, sharding, member);
      if (parts())
        take_samples(held_.samples(), forward_id, nest,
                     tasks_.micro_batches[static_cast<size_t>(task.micro_batch)], loops);
      OpPiece piece = piece_of(signature, nest, loops);
      if (training_.unequal)
        place_in_batch(training_, forward_id, task.micro_batch, start_.micro_batches,
                       training_.unequal->batch.axis, piece.facts);
      if (forward.kind == OpKind::CrossEntropy) {
        piece.facts.mean_count = mean_counts_[forward_id.index()];
        if (piece.facts.mean_count < 0)
          fail_unsupported("\"{}\": its labels are computed", forward.name);
      }
      if (op.forward.valid())
        run_backward(id, op, piece, random, member);
      else
        run_forward(id, op, piece, random, member);
    }
  }

  // The operand in the part that the piece wants.
  Array operand(const Use& use, int64_t member, const Region& wanted) {
    HeldValues::Seen seen = held_.see(use, member);
    ensure(seen.region == wanted,
           fmt::format("operand {} is not the part that the op wants", use.index));
    return std::move(seen.array);
  }

  void run_forward(TaskId id, const Op& op, const OpPiece& piece, RandomState random,
                   int64_t member) {
    std::vector<Array> operands(op.inputs.size());
    std::vector<const Array*> inputs(op.inputs.size(), nullptr);
    for (const Use& use : tasks_.uses_of(id)) {
      if (use.kind != UseKind::Input) continue;
      operands[use.index] = operand(use, member, piece.input_regions[use.index]);
      inputs[use.index] = &operands[use.index];
    }
    if (op.kind != OpKind::CrossEntropy && mean_counts_[tasks_[id].op.index()] >= 0)
      fail_unsupported("\"{}\": the loss divides by a sum over the samples", op.name);
    if (tasks_[id].begins)
      return statistics_.begin(
          id, exchange_of(piece, Pass::Forward), member,
          interpret_statistics(piece.signature(), inputs, random, piece.facts));
    const ForwardResult made = interpret_forward(piece.signature(), inputs, random, piece.facts,
                                                 statistics_.of(id, member));
    for (const Use& use : tasks_.uses_of(id)) {
      if (use.kind != UseKind::Output && use.kind != UseKind::Auxiliary) continue;
      const bool output = use.kind == UseKind::Output;
      store(use, member, output ? made.outputs[use.index] : made.auxiliaries[use.index],
            output ? piece.output_regions[use.index] : piece.auxiliary_regions[use.index]);
      if (output && tasks_[id].kind == TaskKind::Forward &&
          op.outputs[use.index] == roots_[training_.graph.loss.index()])
        loss_buffers_[static_cast<size_t>(tasks_[id].micro_batch)].push_back(use.buffer);
    }
  }

  void run_backward(TaskId id, const Op& op, const OpPiece& piece, RandomState random,
                    int64_t member) {
    const std::vector<bool> wanted = wanted_of(op);
    // That of the op that the graph was made from, as for any piece.
    const GradientRule rule = op_info(op.kind).gradient(
        signature_of(training_.graph, training_.graph[tasks_[id].op]), wanted);
    const size_t gradient_count = op.inputs.size() - op.saved.size();
    std::vector<Array> operands(op.inputs.size());
    std::vector<const Array*> gradients(gradient_count, nullptr), saved(op.saved.size(), nullptr);
    for (const Use& use : tasks_.uses_of(id)) {
      if (use.kind != UseKind::Input) continue;
      const size_t i = use.index;
      const Region* region = i < gradient_count ? &piece.output_regions[i] : nullptr;
      if (i >= gradient_count) {
        const SavedRef& ref = op.saved[i - gradient_count];
        const auto& regions = ref.source == SavedRef::Source::Input    ? piece.input_regions
                              : ref.source == SavedRef::Source::Output ? piece.output_regions
                                                                       : piece.auxiliary_regions;
        region = &regions[static_cast<size_t>(ref.index)];
      }
      operands[i] = operand(use, member, *region);
      (i < gradient_count ? gradients[i] : saved[i - gradient_count]) = &operands[i];
    }
    if (tasks_[id].begins)
      return statistics_.begin(
          id, exchange_of(piece, Pass::Backward, wanted), member,
          interpret_gradient_statistics(piece.signature(), rule, wanted, gradients, saved, random,
                                        piece.facts));
    const std::vector<Array> made =
        interpret_backward(piece.signature(), rule, wanted, gradients, saved, random, piece.facts,
                           statistics_.of(id, member));
    for (const Use& use : tasks_.uses_of(id))
      if (use.kind == UseKind::Output)
        store(use, member, made[use.index], piece.input_regions[use.index]);
  }

  void store(const Use& use, int64_t member, const Array& array, const Region& region) {
    ensure(held_.region(use.buffer, member) == region,
           fmt::format("result {} is not the part that its buffer is for", use.index));
    if (!use.adds) return held_.put(use.buffer, member, {array});
    Array& sum = held_.at(use.buffer, member)[0];
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += array.values[i];
  }

  // Terms that lie alike, or of which the sum is a share.
  void sum(TaskId id) {
    const Use* target = nullptr;
    for (const Use& use : tasks_.uses_of(id))
      if (use.kind == UseKind::Sum) target = &use;
    ensure(target != nullptr, "a sum goes nowhere");
    for (int64_t member : held_.members(team_of(id), tasks_[id].group)) {
      const Region region = held_.region(target->buffer, member);
      const int64_t elements = element_count(local_shape(region));
      const Range mine = held_.share(target->buffer, member, elements);
      Array total;
      if (target->adds) total = held_.at(target->buffer, member)[0];
      for (const Use& use : tasks_.uses_of(id)) {
        if (use.kind != UseKind::Term) continue;
        Array term = operand(use, member, region);
        if (tasks_[target->buffer].share != 0)
          term = Array({mine.size()},
                       {term.values.begin() + mine.begin, term.values.begin() + mine.end});
        if (total.values.empty()) total = Array(term.shape);
        for (size_t i = 0; i < total.values.size(); ++i) total.values[i] += term.values[i];
      }
      held_.put(target->buffer, member, {std::move(total)});
    }
  }

  void finish() {
    if (parts()) end_.losses.push_back(0);
    for (const auto& buffers : loss_buffers_) {
      if (parts() && buffers.empty()) continue;
      const Array loss = held_.assemble(buffers, 0, shape(roots_[training_.graph.loss.index()]));
      if (parts())
        end_.losses[0] += loss.values[0];
      else
        end_.losses.push_back(loss.values[0]);
    }
    for (size_t u = 0; first_update_ + u < training_.graph.ops.size(); ++u) {
      const TensorId weight = update_op(u).inputs[0];
      std::vector<BufferId> weights, states;
      for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
        const Buffer& buffer = tasks_.buffers[b];
        if (!buffer.at_end || buffer.tensor != weight) continue;
        (buffer.kind == BufferKind::OptimizerState ? states : weights).emplace_back(b);
      }
      end_.weights.push_back(held_.assemble(weights, 0, shape(weight)));
      std::vector<Array>& list = end_.states.emplace_back();
      for (size_t k = 2; k < update_op(u).inputs.size(); ++k)
        if (update_op(u).inputs[k].valid())
          list.push_back(held_.assemble(states, list.size(), shape(weight)));
      for (double value : end_.gradients[u].values)
        ensure(!std::isnan(value), "part of a gradient was never used");
    }
  }

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  const StepStart& start_;
  HeldValues held_;
  reference::StatisticsExchange statistics_{held_, tasks_};
  const std::vector<TensorId> roots_;
  const std::vector<double> mean_counts_;  // by op
  size_t first_update_ = 0;
  std::vector<std::vector<BufferId>> loss_buffers_;  // by micro-batch
  StepEnd end_;
  reference::TaskUpdates updates_{training_, tasks_, start_, held_, end_};
};

}  // namespace

StepEnd run_tasks(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
                  const StepStart& start) {
  return TaskWalker(training, machine, tasks, start).run();
}

}  // namespace windlass
