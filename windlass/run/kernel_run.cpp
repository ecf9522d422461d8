#include "windlass/run/kernel_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/cost/allocation.h"
#include "windlass/graph/op_info.h"
#include "windlass/strategy/layout.h"
#include "windlass/strategy/redistribute.h"
#include "windlass/task/holdings.h"
#include "windlass/task/overlap.h"

namespace windlass {
namespace {

bool is_backward(const Op& op) { return op.forward.valid(); }

// Type and region of what a backward op reads of its forward op.
std::pair<const TensorType*, const Region*> saved_operand(const OpPiece& piece,
                                                          const SavedRef& ref) {
  const auto i = static_cast<size_t>(ref.index);
  switch (ref.source) {
    case SavedRef::Source::Input: return {&piece.inputs[i], &piece.input_regions[i]};
    case SavedRef::Source::Output: return {&piece.outputs[i], &piece.output_regions[i]};
    case SavedRef::Source::Auxiliary: break;
  }
  return {&piece.auxiliaries[i], &piece.auxiliary_regions[i]};
}

// Neighbouring elements that draw neighbouring random numbers; 0 if all are.
int64_t drawn_run(const Region& region) {
  int64_t run = 1;
  for (size_t axis = region.size(); axis-- > 0;) {
    if (!region[axis].whole()) return run * region[axis].range.size();
    run *= region[axis].size;
  }
  return 0;
}

bool draws(const OpPiece& piece) {
  if (const auto* attrs = std::get_if<AttentionAttrs>(&piece.attrs)) return attrs->dropout > 0;
  return piece.kind == OpKind::Dropout || piece.kind == OpKind::Random;
}

std::string format_part(const AxisPart& part) {
  return fmt::format("{}-{}x{}/{}", part.range.begin, part.range.end, part.blocks, part.size);
}

bool hides_keys(const Attrs& attrs) {
  const auto* attention = std::get_if<AttentionAttrs>(&attrs);
  return attention != nullptr && (attention->causal || attention->window > 0);
}

// Pairs of queries and keys of a piece of attention that see each other.
int64_t visible_pairs(const OpPiece& piece) {
  const auto& attrs = std::get<AttentionAttrs>(piece.attrs);
  const AxisPart &queries = piece.facts.positions, &keys = piece.facts.keys;
  const int64_t run = keys.size / keys.blocks;
  int64_t pairs = 0;
  for (int64_t q = 0; q < queries.count(); ++q) {
    const int64_t position = queries.to_whole(q) + keys.size - queries.size;
    const int64_t end = attrs.causal ? std::min(position + 1, keys.size) : keys.size;
    const int64_t begin = attrs.window > 0 ? position - attrs.window + 1 : 0;
    for (int64_t b = 0; b < keys.blocks; ++b)
      pairs += std::max<int64_t>(
          0, std::min(end, b * run + keys.range.end) - std::max(begin, b * run + keys.range.begin));
  }
  return pairs;
}

// What pieces of the same sizes differ in.
std::string facts_of(const KernelRun& run) {
  const OpPiece& piece = run.piece;
  const PieceFacts& facts = piece.facts;
  std::string text;
  if (run.begins)
    text += " begins";
  else if (run.exchange().needed())
    text += " ends";
  if (!facts.adds_bias && !is_backward(*run.op)) text += " no-bias";
  if (facts.rows.size > 0 && !facts.rows.whole())
    text += fmt::format(" of-rows {}", facts.rows.size);
  if (hides_keys(piece.attrs))
    text +=
        fmt::format(" queries {} keys {}", format_part(facts.positions), format_part(facts.keys));
  if (draws(piece) && drawn_run(facts.random) > 0 &&
      !(is_backward(*run.op) && piece.kind == OpKind::Dropout))
    text += fmt::format(" draws {}", drawn_run(facts.random));
  return text;
}

}  // namespace

Exchange KernelRun::exchange() const {
  if (!piece.coupled) return {};
  return is_backward(*op) ? exchange_of(piece, Pass::Backward, wanted_of(*op))
                          : exchange_of(piece, Pass::Forward);
}

KernelOperands operands_of(const KernelRun& run) {
  const Op& op = *run.op;
  const OpPiece& piece = run.piece;
  KernelOperands operands;
  // Elements as the training graph has them: the gradient of a 16-bit weight may have 32.
  const auto type = [&](TensorId id, const TensorType& local) {
    return id.valid() ? TensorType{run.graph->type_of(id).dtype, local.shape} : TensorType{};
  };
  const size_t gradients = is_backward(op) ? op.inputs.size() - op.saved.size() : 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    std::pair<const TensorType*, const Region*> local;
    if (!is_backward(op))
      local = {&piece.inputs[i], &piece.input_regions[i]};
    else if (i < gradients)
      local = {&piece.outputs[i], &piece.output_regions[i]};
    else
      local = saved_operand(piece, op.saved[i - gradients]);
    operands.inputs.push_back(type(op.inputs[i], *local.first));
    operands.input_regions.push_back(local.second);
  }
  const std::vector<TensorType>& made = is_backward(op) ? piece.inputs : piece.outputs;
  for (size_t i = 0; i < op.outputs.size(); ++i)
    operands.results.push_back(type(op.outputs[i], made[i]));
  for (size_t i = 0; i < op.auxiliaries.size(); ++i)
    operands.results.push_back(type(op.auxiliaries[i], piece.auxiliaries[i]));
  return operands;
}

std::string key_of(const Graph& graph, const Op& op, uint64_t adds) {
  std::string key = fmt::format("{} {} {} {}", op_info(op.kind).name, static_cast<int>(op.pass),
                                format_attrs(op.attrs), adds);
  for (const auto* list : {&op.inputs, &op.outputs, &op.auxiliaries})
    for (TensorId id : *list) key += id.valid() ? ' ' + format_type(graph[id].type) : " -";
  // Gradients of inputs that are not wanted leave no trace in the types.
  if (is_backward(op))
    for (TensorId id : graph[op.forward].inputs)
      key += id.valid() ? '/' + format_type(graph[id].type) : "/-";
  return key;
}

std::string key_of(const KernelRun& run) {
  const Op& op = *run.op;
  if (run.whole) return key_of(*run.graph, op, run.adds);
  const KernelOperands operands = operands_of(run);
  std::string key = fmt::format("{} {} {} {}", op_info(op.kind).name, static_cast<int>(op.pass),
                                format_attrs(run.piece.attrs), run.adds);
  const auto add = [&](char mark, const TensorType& type) {
    key += mark;
    key += type.present() ? format_type(type) : "-";
  };
  for (const auto* list : {&operands.inputs, &operands.results})
    for (const TensorType& type : *list) add(' ', type);
  if (is_backward(op))
    for (const TensorType& type : run.piece.inputs) add('/', type);
  return key + facts_of(run);
}

KernelRun whole_run(const Graph& graph, const Op& op, uint64_t adds) {
  KernelRun run = {.graph = &graph, .op = &op, .adds = adds};
  if (op.kind != OpKind::Accumulate) {
    const LoopNest nest = loops_of(graph, op);
    run.piece = piece_of(signature_of(graph, op), nest, whole_parts(nest));
    return run;
  }
  const auto region = [](const TensorType& type) {
    Region all;
    for (int64_t size : type.shape) all.push_back({.size = size, .range = {0, size}});
    return all;
  };
  run.piece.kind = op.kind;
  run.piece.attrs = op.attrs;
  for (TensorId input : op.inputs) {
    run.piece.inputs.push_back(graph[input].type);
    run.piece.input_regions.push_back(region(graph[input].type));
  }
  run.piece.outputs = {graph[op.outputs[0]].type};
  run.piece.output_regions = {region(graph[op.outputs[0]].type)};
  return run;
}

TaskKernels::TaskKernels(const TrainingGraph& training, const TaskGraph& tasks)
    : training_(training), tasks_(tasks) {
  if (!tasks.micro_batches.empty()) samples_ = find_samples(training);
  for (const View& view : tasks.views) {
    const bool before = view.of >= 0 && cuts_[static_cast<size_t>(view.of)];
    const bool part =
        view.of >= 0 && tasks.views[static_cast<size_t>(view.of)].tensor == view.tensor;
    cuts_.push_back(before || part);
  }
}

Region TaskKernels::region(int32_t layout, TensorId tensor, int32_t micro_batch,
                           int64_t member) const {
  Region found = region_of(tasks_.layouts[static_cast<size_t>(layout)],
                           graph(micro_batch)[tensor].type.shape, member);
  if (micro_batch < 0 || tasks_.micro_batches.empty()) return found;
  if (const int32_t axis = samples_.axis[tensor.index()]; axis >= 0) {
    AxisPart& part = found[static_cast<size_t>(axis)];
    part.range = samples_.part(part.size, part.range,
                               tasks_.micro_batches[static_cast<size_t>(micro_batch)]);
  }
  return found;
}

int64_t TaskKernels::copied_bytes(TaskId id) const {
  if (tasks_[tasks_.lanes_of(id)[0]].kind != LaneKind::Compute) return 0;
  int64_t bytes = 0;
  for (const Use& use : tasks_.uses_of(id)) {
    const Buffer& buffer = tasks_[use.buffer];
    if (use.view < 0 || buffer.share != 0 || buffer.layout < 0) continue;
    std::vector<const View*> chain;
    for (int32_t v = use.view; v >= 0; v = chain.back()->of)
      chain.push_back(&tasks_.views[static_cast<size_t>(v)]);
    if (!cuts_[static_cast<size_t>(use.view)] && chain.back()->tensor != buffer.tensor) continue;
    const int64_t member = members(id).front();
    TensorId tensor = buffer.tensor;
    Region now = region(buffer.layout, tensor, buffer.micro_batch, member);
    bool copied = false;
    for (size_t i = chain.size(); i-- > 0;) {
      Region part = region(chain[i]->layout, chain[i]->tensor, buffer.micro_batch, member);
      if (chain[i]->tensor == tensor && part != now) {
        copied |= Overlap(now, part).contiguous_from() < 0;
        const TensorType type = {training_.graph[tensor].type.dtype, local_shape(part)};
        if (copied) bytes += allocated(byte_size(type).value).value;
      }
      tensor = chain[i]->tensor;
      now = std::move(part);
    }
  }
  return bytes;
}

bool TaskKernels::has(TaskId id) const { return tasks_[id].op.valid() && !moves(tasks_[id].kind); }

uint64_t TaskKernels::adds(TaskId id) const {
  uint64_t bits = 0;
  for (const Use& use : tasks_.uses_of(id))
    if (use.adds && use.index < 64) bits |= uint64_t{1} << use.index;
  return bits;
}

bool TaskKernels::whole(TaskId id) const {
  const int32_t group = tasks_[id].group;
  return tasks_.micro_batches.empty() &&
         (group < 0 || tasks_.groups[static_cast<size_t>(group)].size() == 1);
}

std::vector<int64_t> TaskKernels::members(TaskId id) const {
  if (whole(id) || tasks_[id].group < 0) return {0};
  const auto& devices = tasks_.groups[static_cast<size_t>(tasks_[id].group)];
  std::vector<int64_t> found;
  for (DeviceId device : tasks_[tasks_[tasks_.lanes_of(id)[0]].team].devices) {
    found.push_back(std::ranges::find(devices, device) - devices.begin());
    ensure(found.back() < static_cast<int64_t>(devices.size()),
           "a team is not part of its task's group");
  }
  std::ranges::sort(found);
  return found;
}

Range TaskKernels::samples(TaskId id) const {
  return tasks_.micro_batches[static_cast<size_t>(tasks_[id].micro_batch)];
}

TaskKernels::Number TaskKernels::number(TaskId id) const {
  const Task& task = tasks_[id];
  return {task.op.value,  task.how,
          members(id)[0], tasks_.micro_batches.empty() ? size_of(task) : task.micro_batch,
          task.begins,    adds(id)};
}

TaskKernels::Origin TaskKernels::origin(TaskId id) const {
  const Task& task = tasks_[id];
  const Graph& graph = this->graph(task.micro_batch);
  const Op& op = graph[task.op];
  if (op.kind == OpKind::Accumulate) return {key_of(run(id)), {}};
  std::string text = key_of(graph, op, adds(id));
  text += task.begins ? " begins" : " ends";
  const std::vector<int64_t> team = members(id);
  text += fmt::format(" {}", team[0]);
  if (hides_keys(op.attrs))
    for (int64_t member : team) text += fmt::format(",{}", member);
  if (!tasks_.micro_batches.empty() && task.micro_batch >= 0)
    text += fmt::format(" {}: {}-{}/{}",
                        samples_.loop[(is_backward(op) ? op.forward : task.op).index()],
                        samples(id).begin, samples(id).end, samples_.samples);
  return {std::move(text),
          task.how < 0 ? Sharding{} : tasks_.shardings[static_cast<size_t>(task.how)]};
}

// Terms that lie like their sum.
OpPiece TaskKernels::sum_piece(TaskId id, int64_t member) const {
  const Op& op = training_.graph[tasks_[id].op];
  const TensorType& whole = graph(tasks_[id].micro_batch)[op.outputs[0]].type;
  const auto uses = tasks_.uses_of(id);
  const auto sum = std::ranges::find(uses, UseKind::Sum, &Use::kind);
  ensure(sum != uses.end(), "a sum goes nowhere");
  const Region region =
      this->region(tasks_[sum->buffer].layout, op.outputs[0], tasks_[id].micro_batch, member);
  OpPiece piece;
  piece.kind = op.kind;
  piece.attrs = op.attrs;
  for (TensorId input : op.inputs) {
    piece.inputs.push_back({training_.graph[input].type.dtype, local_shape(region)});
    piece.input_regions.push_back(region);
  }
  piece.outputs = {{whole.dtype, local_shape(region)}};
  piece.output_regions = {region};
  return piece;
}

OpPiece TaskKernels::piece(TaskId id, const Signature& signature, const LoopNest& nest,
                           int64_t member, bool& whole) const {
  const Task& task = tasks_[id];
  const Op& op = training_.graph[task.op];
  std::vector<LoopPart> parts = whole_parts(nest);
  if (task.how >= 0)
    parts = loop_parts(nest, tasks_.shardings[static_cast<size_t>(task.how)], member);
  if (!tasks_.micro_batches.empty() && task.micro_batch >= 0)
    take_samples(samples_, is_backward(op) ? op.forward : task.op, nest, samples(id), parts);
  whole = true;
  for (size_t l = 0; l < parts.size(); ++l)
    whole &= parts[l].range.size() * parts[l].blocks == nest.loops[l].size;
  return piece_of(signature, nest, parts);
}

KernelRun TaskKernels::run(TaskId id) const {
  const Task& task = tasks_[id];
  const Graph& graph = this->graph(task.micro_batch);
  const Op& op = graph[task.op];
  const std::vector<int64_t> team = members(id);
  KernelRun run = {.graph = &graph, .op = &op, .begins = task.begins, .adds = adds(id)};
  if (op.kind == OpKind::Accumulate) {
    run.piece = sum_piece(id, team[0]);
    run.whole = run.piece.outputs[0] == graph[op.outputs[0]].type;
    return run;
  }
  const Signature signature = signature_of(graph, op);
  const LoopNest nest = loops_of(graph, op);
  run.piece = piece(id, signature, nest, team[0], run.whole);
  for (size_t m = 1; m < team.size() && !run.whole && hides_keys(op.attrs); ++m) {
    OpPiece other = piece(id, signature, nest, team[m], run.whole);
    if (visible_pairs(other) > visible_pairs(run.piece)) run.piece = std::move(other);
  }
  return run;
}

int64_t TaskKernels::updated_elements(TaskId id, const Use& weight, const Op& update) const {
  const Task& task = tasks_[id];
  const Buffer& held = tasks_[weight.buffer];
  const Graph& graph = training_.graph;
  const TensorType& type = graph[update.inputs[0]].type;
  const int64_t all = element_count(type.shape);
  if (task.group < 0 || tasks_.groups[static_cast<size_t>(task.group)].size() == 1) return all;
  if (task.kind == TaskKind::HostUpdate) {
    // Hosts have the gradients of all their members side by side, and do not round.
    const auto same = [&](const Use& use) {
      return use.kind == UseKind::Gradient && use.index == weight.index;
    };
    const auto uses = tasks_.uses_of(id);
    const auto gradient = std::ranges::find_if(uses, same);
    ensure(gradient != uses.end(), "an update lacks its gradient");
    const TensorType element = {graph[update.inputs[1]].type.dtype, {}};
    return tasks_[gradient->buffer].bytes.value / byte_size(element).value;
  }
  if (held.layout < 0) return all;
  const Layout& layout = tasks_.layouts[static_cast<size_t>(held.layout)];
  const int64_t elements = largest_elements(layout, type.shape);
  if (task.how <= 0) return elements;
  return share_of(elements, tasks_.digit_sets[static_cast<size_t>(task.how)], members(id)[0])
      .size();
}

}  // namespace windlass
