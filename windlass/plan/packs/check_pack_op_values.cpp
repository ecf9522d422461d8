// Ops of packs, and the tensors they read and write.
#include <algorithm>

#include "windlass/plan/packs/pack_op_checker.h"

namespace windlass {

bool PackOpChecker::holds(const Seen& seen, TensorId tensor, const Range& samples) const {
  if (seen.tensor != tensor || seen.held.content != content(tensor, samples)) return false;
  return kind(tensor) != SampleKind::Apart || seen.held.samples == samples;
}

// What a task reads, after the views of it. Nothing, and a complaint, if that is not there.
std::optional<PackOpChecker::Seen> PackOpChecker::see(TaskId id, const Use& use) {
  Seen seen = {graph_[use.buffer].tensor, held(use.buffer)};
  if (!seen.held.there) {
    complain("{}: reads {}, which nobody has written", name(id), name(use.buffer));
    return std::nullopt;
  }
  std::vector<const View*> chain;
  for (int32_t v = use.view; v >= 0; v = chain.back()->of)
    chain.push_back(&graph_.views[static_cast<size_t>(v)]);
  for (size_t i = chain.size(); i-- > 0;) {
    const View& to = *chain[i];
    const OpId producer = training_.graph[to.tensor].producer;
    const Op* op = producer.valid() ? &training_.graph[producer] : nullptr;
    Buffer as = graph_[use.buffer];
    as.tensor = to.tensor;
    if (op == nullptr || !op_info(op->kind).view || op->inputs[0] != seen.tensor ||
        op->outputs[0] != to.tensor || seen.held.share ||
        (!holds(seen, seen.tensor, seen.held.samples) && kind(seen.tensor) != SampleKind::Summed) ||
        graph_.layouts[static_cast<size_t>(to.layout)] != expected_layout(as)) {
      complain("{}: {} holds \"{}\", of which \"{}\" is no view", name(id), name(use.buffer),
               name(seen.tensor), name(to.tensor));
      return std::nullopt;
    }
    // The number of a view is its own, over the same samples.
    const Range part = range(graph_[id].micro_batch);
    if (kind(seen.tensor) == SampleKind::Summed && seen.held.content != content(seen.tensor, part))
      complain("{}: {} does not hold \"{}\" of this micro-batch", name(id), name(use.buffer),
               name(seen.tensor));
    seen.tensor = to.tensor;
    seen.held.content =
        content(to.tensor, kind(to.tensor) == SampleKind::Apart ? seen.held.samples : part);
  }
  return seen;
}

// Whether a task of the layer's ops is on the team and of a micro-batch that the strategy names.
bool PackOpChecker::runs_where(TaskId id, int32_t layer) {
  const Task& task = graph_[id];
  const size_t pack = pack_of(layer);
  const bool late = task.kind != TaskKind::Forward || loss_pack(pack);
  const int32_t expected = late ? backward_team(pack) : forward_team(layer);
  const Range part = range(task.micro_batch);
  const auto& parts = late ? backward_parts_ : forward_parts_;
  const bool right = team(id) == expected && parts.contains({part.begin, part.end}) &&
                     (task.kind != TaskKind::Recompute ||
                      (!loss_pack(pack) && strategy_.actions[pack] == PackAction::Recompute));
  if (!right)
    complain("{}: expected on team {}, in the micro-batches of its pass", name(id), expected);
  return right;
}

// Replicas split the samples. Kernels do no less than the op has for its samples.
void PackOpChecker::check_split(TaskId id) {
  const Task& task = graph_[id];
  Sharding expected;
  const int32_t loop = samples_.loop[task.op.index()];
  if (replicated()) expected.splits.push_back({loop, strategy_.replicas});
  if (!in(task.how, graph_.shardings) ||
      graph_.shardings[static_cast<size_t>(task.how)] != expected)
    complain("{}: is not split over the replicas", name(id));
  const Op& op = training_.graph[task.op];
  if (const auto* attention = std::get_if<AttentionAttrs>(&op.attrs))
    if (attention->causal || attention->window > 0) return;
  double done = 0;
  for (const Kernel& kernel : graph_.works[static_cast<size_t>(task.price)].kernels)
    done += kernel.multiply_adds;
  double wanted = arithmetic_of(training_.graph, op).multiply_adds;
  if (loop >= 0)
    wanted *=
        static_cast<double>(range(task.micro_batch).size()) / static_cast<double>(samples_.samples);
  if (done < wanted * (1 - 1e-6))
    complain("{}: {} multiply-adds, expected {}", name(id), done, wanted);
}

// Each operand of the op is one use, and there are no others.
void PackOpChecker::compute(TaskId id) {
  const Task& task = graph_[id];
  const bool backward = task.kind == TaskKind::Backward;
  if (!task.op.valid() || backward != (task.op.index() >= training_.forward_ops) ||
      op_info(training_.graph[task.op].kind).view || task.micro_batch < 0 ||
      lane(id) != LaneKind::Compute || task.group != team(id))
    return complain("{}: carries out no op of its pass", name(id));
  const Op& op = training_.graph[task.op];
  const bool of_data = !backward && plain(op.outputs[0]);
  if (!of_data && !runs_where(id, layer_of_[task.op.index()])) return;
  check_split(id);
  const auto uses = graph_.uses_of(id);
  size_t matched = 0;
  const auto match = [&](const std::vector<TensorId>& list, UseKind kind, auto carry_out) {
    for (size_t k = 0; k < list.size(); ++k) {
      if (!list[k].valid()) continue;
      const auto mine = [&](const Use& use) { return use.kind == kind && use.index == k; };
      const auto use = std::ranges::find_if(uses, mine);
      if (use == uses.end()) {
        complain("{}: lacks {} {}, \"{}\"", name(id), use_kind_name(kind), k, name(list[k]));
        continue;
      }
      ++matched;
      if (use->write != (kind != UseKind::Input) || !on_team(use->buffer, team(id)) ||
          graph_[use->buffer].group != team(id))
        complain("{}: uses {} for {} {}", name(id), name(use->buffer), use_kind_name(kind), k);
      else
        carry_out(*use, list[k], k);
    }
  };
  const size_t gradients = backward ? op.inputs.size() - op.saved.size() : op.inputs.size();
  match(op.inputs, UseKind::Input, [&](const Use& use, TensorId tensor, size_t k) {
    read(id, use, tensor);
    if (k >= gradients) read_saved(id, use, tensor);
  });
  const auto made = [&](const Use& use, TensorId tensor, size_t) { write(id, use, tensor); };
  match(op.outputs, UseKind::Output, made);
  if (!backward) match(op.auxiliaries, UseKind::Auxiliary, made);
  if (matched != uses.size())
    complain("{}: uses {} buffers, {} of them as its operands", name(id), uses.size(), matched);
}

void PackOpChecker::read(TaskId id, const Use& use, TensorId tensor) {
  const std::optional<Seen> seen = see(id, use);
  if (!seen) return;
  const bool terms = replicated() && kind(tensor) == SampleKind::Summed;
  if (use.adds || !holds(*seen, tensor, range(graph_[id].micro_batch)))
    complain("{}: {} does not hold \"{}\" of these samples, before its update", name(id),
             name(use.buffer), name(tensor));
  else if (seen->held.share || seen->held.partial != terms)
    complain("{}: {} is in shares, or not summed up", name(id), name(use.buffer));
}

// What the backward pass reads of the forward pass comes from where the strategy says.
void PackOpChecker::read_saved(TaskId id, const Use& use, TensorId tensor) {
  const TensorId root = roots_[tensor.index()];
  const OpId producer = training_.graph[root].producer;
  if (!producer.valid() || plain(root)) return;
  const size_t pack = pack_of(layer_of_[graph_[id].op.index()]);
  const Pack layers = strategy_.backward_packs[pack];
  const TaskKind from = held(use.buffer).from;
  bool right = true;
  if (layer_of_[producer.index()] >= layers.first) {
    const PackAction action = strategy_.actions[pack];
    right = from == (loss_pack(pack) || action == PackAction::Keep ? TaskKind::Forward
                     : action == PackAction::Recompute             ? TaskKind::Recompute
                                                                   : TaskKind::SwapIn);
  } else if (!loss_pack(pack)) {
    const bool waits = !strategy_.streams || strategy_.stash_on_host[pack] != 0 ||
                       forward_team(layers.first) != backward_team(pack);
    right = (from == TaskKind::SwapIn) == waits;
  }
  if (!right)
    complain("{}: {} comes from a {}, not from where the strategy keeps it", name(id),
             name(use.buffer), task_kind_name(from));
}

// A result goes to a buffer of its own, or is added to the sum of a weight's gradient.
void PackOpChecker::write(TaskId id, const Use& use, TensorId tensor) {
  const Task& task = graph_[id];
  const Buffer& buffer = graph_[use.buffer];
  Held& held = this->held(use.buffer);
  const bool sums = buffer.kind == BufferKind::WeightGradient;
  const auto shape = [&](TensorId of) { return training_.graph[of].type.shape; };
  const bool right = use.view < 0 && buffer.share == 0 &&
                     (sums ? gradients_[buffer.tensor.index()] && buffer.micro_batch < 0 &&
                                 shape(buffer.tensor) == shape(tensor)
                           : buffer.tensor == tensor && buffer.micro_batch == task.micro_batch);
  if (!right) complain("{}: {} is not for \"{}\"", name(id), name(use.buffer), name(tensor));
  if (use.adds != held.there || (use.adds && !sums))
    complain("{}: {} {}, which {}", name(id), use.adds ? "adds to" : "overwrites", name(use.buffer),
             held.there ? "holds something" : "holds nothing");
  if (use.adds && (held.share || held.partial != replicated()))
    complain("{}: adds to {}, which is summed up already", name(id), name(use.buffer));
  held.content = (use.adds ? held.content : 0) + content(tensor, range(task.micro_batch));
  held.there = true;
  held.samples = kind(tensor) == SampleKind::Apart ? range(task.micro_batch) : Range();
  held.partial = replicated() && kind(tensor) == SampleKind::Summed;
}

// Sums of gradients: an op, or a term of a weight's gradient.
void PackOpChecker::sum(TaskId id) {
  const Task& task = graph_[id];
  const Op* op = task.op.valid() ? &training_.graph[task.op] : nullptr;
  const auto uses = graph_.uses_of(id);
  const auto target = std::ranges::find(uses, UseKind::Sum, &Use::kind);
  const bool known =
      op ? op->kind == OpKind::Accumulate : task.tensor.valid() && gradients_[task.tensor.index()];
  if (!known || target == uses.end() || task.micro_batch < 0 || lane(id) != LaneKind::Compute ||
      task.group != team(id))
    return complain("{}: is no sum of its pass", name(id));
  if (op && !runs_where(id, layer_of_[task.op.index()])) return;
  const Range part = range(task.micro_batch);
  if (!op && !backward_parts_.contains({part.begin, part.end}))
    complain("{}: is of no micro-batch of the backward pass", name(id));
  uint64_t total = 0;
  std::vector<bool> found(op ? op->inputs.size() : 1, false);
  const TensorId tensor = op ? op->outputs[0] : task.tensor;
  for (const Use& use : uses) {
    if (!on_team(use.buffer, team(id))) complain("{}: {} is not there", name(id), name(use.buffer));
    if (&use == &*target) continue;
    if (use.kind != UseKind::Term || use.write || use.adds || use.index >= found.size() ||
        found[use.index]) {
      complain("{}: uses {}, which is none of its terms", name(id), name(use.buffer));
      continue;
    }
    found[use.index] = true;
    const std::optional<Seen> term = see(id, use);
    if (!term) continue;
    if (op && !holds(*term, op->inputs[use.index], part))
      complain("{}: {} does not hold \"{}\"", name(id), name(use.buffer),
               name(op->inputs[use.index]));
    if (term->held.share ||
        term->held.partial != (replicated() && kind(tensor) == SampleKind::Summed) ||
        training_.graph[term->tensor].type.shape != training_.graph[tensor].type.shape)
      complain("{}: {} does not lie like its sum", name(id), name(use.buffer));
    total += term->held.content;
  }
  if (std::ranges::find(found, false) != found.end())
    complain("{}: does not read all of its terms", name(id));
  if (!target->write) complain("{}: does not write its sum", name(id));
  Held& sum = held(target->buffer);
  const uint64_t before = target->adds ? sum.content : 0;
  write(id, *target, tensor);
  sum.content = before + total;
}

}  // namespace windlass
