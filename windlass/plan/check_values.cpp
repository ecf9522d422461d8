// Ops and the tensors they read and write.

#include <algorithm>

#include "windlass/plan/checker.h"

namespace windlass {

// Weights, constants and statistics are the same in all micro-batches.
bool Checker::fixed(TensorId tensor) const {
  const Tensor& t = training_.graph[tensor];
  return !t.producer.valid() && t.role != TensorRole::Input && t.role != TensorRole::Label;
}

bool Checker::holds(const Seen& seen, TensorId tensor, int32_t micro_batch) const {
  return seen.tensor == tensor &&
         seen.held.content == content(tensor, fixed(tensor) ? kFixed : micro_batch);
}

// What a task reads, after the views of it: a part of what each member has, or the result of an op
// that is a view. Nothing, and a complaint, if that is not there.
std::optional<Checker::Seen> Checker::see(TaskId id, const Use& use) {
  Seen seen = {graph_[use.buffer].tensor, held(use.buffer)};
  if (const auto size = [&](const TrainingGraph& step) -> const Shape& {
        return step.graph[seen.tensor].type.shape;
      };
      size(training_.of(graph_[use.buffer].micro_batch)) != size(layouts_.sized())) {
    complain("{}: reads {}, which has the size of another micro-batch", name(id), name(use.buffer));
    return std::nullopt;
  }
  if (!seen.held.there) {
    complain("{}: reads {}, which nobody has written", name(id), name(use.buffer));
    return std::nullopt;
  }
  std::vector<const View*> chain;
  for (int32_t v = use.view; v >= 0; v = chain.back()->of)
    chain.push_back(&graph_.views[static_cast<size_t>(v)]);
  const auto wrong = [&](const View& to) {
    complain("{}: {} holds \"{}\" as {}, of which \"{}\" as {} is no view", name(id),
             name(use.buffer), name(seen.tensor), format_layout(layouts_[seen.held.layout]),
             name(to.tensor), format_layout(layouts_[layout_id(to.layout)]));
    return std::nullopt;
  };
  for (size_t i = chain.size(); i-- > 0;) {
    const View& to = *chain[i];
    const int32_t layout = layout_id(to.layout);
    if (seen.held.share != 0 || seen.held.open || seen.held.bits != 0) return wrong(to);
    if (to.tensor == seen.tensor) {
      if (!layouts_.fits(to.tensor, seen.held.layout, layout, members(group_of(use.buffer))))
        return wrong(to);
    } else {
      const OpId producer = training_.graph[to.tensor].producer;
      if (!producer.valid() || !view(training_.graph[producer])) return wrong(to);
      const CheckOp& op = layouts_.of(producer);
      const bool right = op.reads[0].layout == seen.held.layout && op.results[0].layout == layout &&
                         op.results[0].tensor == to.tensor &&
                         holds(seen, op.reads[0].tensor, graph_[id].micro_batch);
      if (!right) return wrong(to);
      seen.held.content = content(to.tensor, graph_[id].micro_batch);
    }
    seen.tensor = to.tensor;
    seen.held.layout = layout;
  }
  return seen;
}

// Whether a task is of a group, on the compute lane of one of its teams.
bool Checker::runs_on(TaskId id, int32_t group) {
  const auto lanes = graph_.lanes_of(id);
  if (group >= 0 && group_id(graph_[id].group) == group && lanes.size() == 1 &&
      graph_[lanes[0]].kind == LaneKind::Compute)
    for (TeamId team : teams_[static_cast<size_t>(group)])
      if (team == team_of(id)) return true;
  complain("{}: is not on a compute lane of group {}", name(id), group);
  return false;
}

// Every member is priced as the one with most, so that together they do no less than the op; where
// parts are unequal, as the one with most of those with the same sizes, which has no less than its
// part. `begun`: multiply-adds of the task that began it.
void Checker::check_work(TaskId id, int32_t group, double begun) {
  const Graph& graph = layouts_.sized().graph;
  const Op& op = graph[graph_[id].op];
  // A kernel that knows its mask skips what is masked.
  if (const auto* attention = std::get_if<AttentionAttrs>(&op.attrs))
    if (attention->causal || attention->window > 0) return;
  double done = begun;
  for (const Kernel& kernel : graph_.works[static_cast<size_t>(graph_[id].price)].kernels)
    done += kernel.multiply_adds;
  const double wanted = arithmetic_of(graph, op).multiply_adds;
  const OpId forward = op.forward.valid() ? op.forward : graph_[id].op;
  const Sharding& sharding =
      strategy_.shardings[static_cast<size_t>(strategy_.ops[forward.index()])];
  if (unequal(sharding)) {
    const LoopNest nest = loops_of(graph, graph[forward]);
    for (int64_t m : members(team_of(id), group)) {
      double part = wanted;
      const std::vector<LoopPart> parts = loop_parts(nest, sharding, m);
      for (size_t l = 0; l < parts.size(); ++l)
        if (nest.loops[l].size > 0)
          part *= static_cast<double>(parts[l].range.size() * parts[l].blocks) /
                  static_cast<double>(nest.loops[l].size);
      if (done < part * (1 - 1e-6))
        complain("{}: {} multiply-adds, the piece of member {} has {}", name(id), done, m, part);
    }
    return;
  }
  if (done * static_cast<double>(members(group)) < wanted * (1 - 1e-6))
    complain("{}: {} multiply-adds on each of {} devices, the op has {}", name(id), done,
             members(group), wanted);
}

// Each operand of the op is one use, and there are no others.
void Checker::compute(TaskId id) {
  const Task& task = graph_[id];
  const bool backward = task.kind == TaskKind::Backward;
  const bool known = task.op.valid() && (backward || task.op.index() < training_.forward_ops) &&
                     !view(training_.graph[task.op]) && task.micro_batch >= 0;
  if (!known) return complain("{}: carries out no op of its pass", name(id));
  const int32_t group = group_of(task.op);
  if (!runs_on(id, group)) return;
  const OpId forward = backward ? training_.graph[task.op].forward : task.op;
  if (!in(task.how, graph_.shardings) ||
      graph_.shardings[static_cast<size_t>(task.how)] !=
          strategy_.shardings[static_cast<size_t>(strategy_.ops[forward.index()])])
    complain("{}: is not split as the strategy says", name(id));
  const CheckOp& op = layouts_.of(task.op);
  if (task.begins && op.exchanged == 0)
    return complain("{}: its pieces have nothing to exchange", name(id));
  const double begun = op.exchanged > 0 ? use_statistics(id, group) : 0;
  if (!task.begins) check_work(id, group, begun);
  const auto uses = graph_.uses_of(id);
  const auto match = [&](const std::vector<CheckOperand>& operands, auto carry_out) {
    size_t matched = 0;
    for (const CheckOperand& operand : operands) {
      if (task.begins && operand.write) continue;  // waits for the end
      const auto mine = [&](const Use& use) {
        return use.kind == operand.kind && use.index == operand.index;
      };
      const auto use = std::ranges::find_if(uses, mine);
      if (use == uses.end()) {
        complain("{}: lacks {} {}, \"{}\"", name(id), use_kind_name(operand.kind), operand.index,
                 name(operand.tensor));
        continue;
      }
      ++matched;
      if (use->write != operand.write || graph_[use->buffer].memory != memory_of(id) ||
          group_of(use->buffer) != group)
        complain("{}: uses {} for {} {}", name(id), name(use->buffer), use_kind_name(operand.kind),
                 operand.index);
      else
        (this->*carry_out)(id, *use, operand);
    }
    return matched;
  };
  const size_t reads = match(op.reads, &Checker::read);
  const size_t results = match(op.results, &Checker::write);
  const size_t statistics = op.exchanged > 0 ? 1 : 0;
  if (reads + results + statistics != uses.size())
    complain("{}: uses {} buffers, {} of them as its operands", name(id), uses.size(),
             reads + results + statistics);
}

void Checker::read(TaskId id, const Use& use, const CheckOperand& operand) {
  const std::optional<Seen> seen = see(id, use);
  if (!seen) return;
  const Held& held = seen->held;
  if (use.adds || !holds(*seen, operand.tensor, graph_[id].micro_batch))
    complain("{}: {} does not hold \"{}\" of this micro-batch, before its update", name(id),
             name(use.buffer), name(operand.tensor));
  else if (held.layout != operand.layout || held.share != 0 || held.open || held.bits != 0)
    complain("{}: reads \"{}\" as {}{}, wanted as {}", name(id), name(operand.tensor),
             format_layout(layouts_[held.layout]), held.open ? " with shares of a sum" : "",
             format_layout(layouts_[operand.layout]));
}

// A result goes to a buffer of its own, or is added to a sum that lies like it.
void Checker::write(TaskId id, const Use& use, const CheckOperand& operand) {
  const Task& task = graph_[id];
  const Buffer& buffer = graph_[use.buffer];
  Held& held = this->held(use.buffer);
  const bool sums = buffer.kind == BufferKind::WeightGradient;
  const bool right = use.view < 0 && held.bits == 0 &&
                     (sums ? gradients_[buffer.tensor.index()] &&
                                 layouts_.shape(buffer.tensor) == layouts_.shape(operand.tensor)
                           : buffer.tensor == operand.tensor) &&
                     (buffer.micro_batch == task.micro_batch || (sums && buffer.micro_batch < 0));
  if (!right)
    complain("{}: {} is not for \"{}\"", name(id), name(use.buffer), name(operand.tensor));
  if (held.layout != operand.layout || held.share != 0)
    complain("{}: leaves \"{}\" as {} in {}, which is for {}", name(id), name(operand.tensor),
             format_layout(layouts_[operand.layout]), name(use.buffer),
             format_layout(layouts_[held.layout]));
  if (use.adds != held.there || (use.adds && !sums))
    complain("{}: {} {}, which {}", name(id), use.adds ? "adds to" : "overwrites", name(use.buffer),
             held.there ? "holds something" : "holds nothing");
  held.content = (use.adds ? held.content : 0) + content(operand.tensor, task.micro_batch);
  held.there = true;
  held.open = operand.gradient &&
              layouts_.loose(operand.tensor, operand.layout, members(group_of(use.buffer)));
}

// Terms that lie alike, partial sums or not, make a sum that lies like them.
void Checker::sum(TaskId id) {
  const Task& task = graph_[id];
  const Op* op = task.op.valid() ? &training_.graph[task.op] : nullptr;
  const auto uses = graph_.uses_of(id);
  const auto target = std::ranges::find(uses, UseKind::Sum, &Use::kind);
  const bool known =
      op ? op->kind == OpKind::Accumulate && task.micro_batch >= 0 : task.tensor.valid();
  if (!known || target == uses.end()) return complain("{}: is no sum of its pass", name(id));
  const TensorId tensor = op ? op->outputs[0] : task.tensor;
  const BufferId id_of_sum = target->buffer;
  const int32_t group = op ? group_of(task.op) : group_of(id_of_sum);
  if (!runs_on(id, group)) return;
  Held& sum = held(id_of_sum);
  if (graph_[id_of_sum].tensor != tensor &&
      layouts_.shape(graph_[id_of_sum].tensor) != layouts_.shape(tensor))
    complain("{}: {} is not for \"{}\"", name(id), name(id_of_sum), name(tensor));
  if (!target->write || target->adds != sum.there || (op && target->adds) || target->view >= 0)
    complain("{}: {} {}", name(id), target->adds ? "adds to" : "overwrites", name(id_of_sum));
  uint64_t total = target->adds ? sum.content : 0;
  std::vector<bool> found(op ? op->inputs.size() : 1, false);
  for (const Use& use : uses) {
    if (graph_[use.buffer].memory != memory_of(id) || group_of(use.buffer) != group)
      complain("{}: {} is not there", name(id), name(use.buffer));
    if (&use == &*target) continue;
    if (use.kind != UseKind::Term || use.write || use.index >= found.size() || found[use.index]) {
      complain("{}: uses {}, which is none of its terms", name(id), name(use.buffer));
      continue;
    }
    found[use.index] = true;
    const std::optional<Seen> term = see(id, use);
    if (!term) continue;
    if (op && !holds(*term, op->inputs[use.index], task.micro_batch))
      complain("{}: {} does not hold \"{}\"", name(id), name(use.buffer),
               name(op->inputs[use.index]));
    const bool first = !sum.there && total == 0;
    if (first) sum.open = term->held.open;
    if (term->held.layout != sum.layout || term->held.open != sum.open || term->held.bits != 0 ||
        (term->held.share != 0 && term->held.share != sum.share) ||
        layouts_.shape(term->tensor) != layouts_.shape(graph_[id_of_sum].tensor))
      complain("{}: {} lies as {}, its sum as {}", name(id), name(use.buffer),
               format_layout(layouts_[term->held.layout]), format_layout(layouts_[sum.layout]));
    total += op ? content(op->inputs[use.index], task.micro_batch) : term->held.content;
  }
  if (std::ranges::find(found, false) != found.end())
    complain("{}: does not read all of its terms", name(id));
  sum.there = true;
  sum.content = total;
}

}  // namespace windlass
