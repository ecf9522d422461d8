#include "windlass/runtime/task_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/runtime/kernels/compress.h"
#include "windlass/runtime/kernels/errors.h"
#include "windlass/runtime/kernels/update_kernels.h"

namespace windlass {
namespace {

bool copies_itself(const TaskGraph& tasks, const Machine& machine) {
  return std::ranges::any_of(
      tasks.teams, [&](const Team& team) { return machine.device_types[team.type].copies_itself; });
}

}  // namespace

TaskRunner::TaskRunner(const TrainingGraph& training, const TaskGraph& tasks, Program& program,
                       Slots& slots, const Ownership& own, const Machine& machine,
                       const ExecutorOptions& options)
    : training_(training),
      tasks_(tasks),
      program_(program),
      slots_(slots),
      options_(options),
      own_(own),
      exchange_(
          program, slots, own, options.ranks,
          own.alone() || !options.library_sums
              ? nullptr
              : std::make_unique<PlainSums>(program, tasks, own, *options.ranks),
          own.alone() && copies_itself(tasks, machine) ? program.devices * options.threads : 1),
      pacer_(machine, static_cast<size_t>(program.steps)),
      norms_(static_cast<size_t>(program.steps)) {
  paces_ = options.pace && !copies_itself(tasks, machine);
  size_t members = 1;
  for (const auto& group : tasks.groups) members = std::max(members, group.size());
  losses_.assign(static_cast<size_t>(program.steps),
                 {static_cast<size_t>(program.micro_batches), std::vector<double>(members, 0)});
}

void TaskRunner::begin(std::vector<StepRequest> requests) {
  ensure(requests.size() == static_cast<size_t>(program_.steps), "a row has other steps");
  requests_ = std::move(requests);
  for (auto& norm : norms_) norm = 0;
  pacer_.begin_row();
  for (auto& step : losses_)
    for (auto& list : step) std::ranges::fill(list, 0);
  for (const StepRequest& request : requests_)
    ensure(!program_.needs_counts() || request.mean_counts.size() == training_.graph.ops.size(),
           "pieces do not know what their means divide by");
  for (ProgramPiece& run : program_.pieces) {
    const StepRequest& request = requests_[static_cast<size_t>(run.step)];
    const Op& op = training_.graph[run.forward];
    const double count = program_.needs_counts() ? request.mean_counts[run.forward.index()] : -1;
    if (op.kind == OpKind::CrossEntropy) {
      run.piece.facts.mean_count = count;
      const bool cut = run.piece.inputs[1].shape != training_.graph[op.inputs[1]].type.shape;
      if (count < 0 && cut)
        fail_unsupported("\"{}\": its labels are computed, and cannot be counted beforehand",
                         op.name);
    } else if (count >= 0) {
      if (program_.in_parts)
        fail_unsupported("\"{}\": the loss divides by a sum over the samples",
                         training_.graph[run.forward].name);
      run.result = count * run.count;
    }
  }
}

void TaskRunner::run(TaskId id, int32_t part) {
  const ProgramTask& task = program_.tasks[id.index()];
  const auto begin = LinkPacer::Clock::now();
  int32_t at = part;
  try {
    if (options_.delay) options_.delay(id.value, part);
    for (BufferId buffer : task.brings) bring(buffer, id, part);
    if (part >= 0) {
      run_part(id, task.parts[static_cast<size_t>(part)]);
    } else {
      for (const Part& each : task.parts) allocate(each.allocates);
      allocate(task.allocates);
      for (size_t i = 0; i < task.parts.size(); ++i) {
        at = static_cast<int32_t>(i);
        if (does(task.parts[i])) run_part(id, task.parts[i]);
      }
      at = -1;
    }
    if (!moves(task.kind)) return;
    exchange_.run(id, part);
    const Traffic& traffic = tasks_.traffics[static_cast<size_t>(tasks_[id].price)];
    if (part <= 0 && counts(id))
      pacer_.count(traffic, program_.step_of(id));  // traffic is that of all members
    if (!paces_) return;
    if (part < 0)
      pacer_.wait(traffic, begin);
    else if (part == 0)
      pacer_.lead(id.index(), traffic, begin);
    else
      pacer_.follow(id.index());
  } catch (...) {
    rethrow_within(label(id, at));
  }
}

// Of parts that all do together, those that are on this process's memories.
bool TaskRunner::does(const Part& part) const {
  if (own_.alone()) return true;
  bool own = false;
  for_slots(part, [&](int32_t slot) { own |= own_.mine(slot); });
  return own;
}

// Of several processes that do a task the first one counts its bytes.
bool TaskRunner::counts(TaskId id) const {
  if (own_.alone()) return true;
  int32_t first = own_.rank;
  for (const Use& use : tasks_.uses_of(id))
    for (int32_t slot : program_.slots_of[use.buffer.index()])
      first = std::min(first, own_.of_slot[static_cast<size_t>(slot)]);
  return first == own_.rank;
}

void TaskRunner::run_part(TaskId id, const Part& part) {
  allocate(part.allocates);
  switch (program_.tasks[id.index()].kind) {
    case TaskKind::Forward:
    case TaskKind::Recompute:
    case TaskKind::Backward: return part.piece >= 0 ? compute(id, part) : sum(id, part);
    case TaskKind::Update:
    case TaskKind::HostUpdate: return update(id, part);
    case TaskKind::Norm: return add_squares(part);
    case TaskKind::Join:
    case TaskKind::SwapIn:
    case TaskKind::SwapOut: return copy(part, !paces_);
    case TaskKind::Compress:
    case TaskKind::Decompress: return compress(id, part);
    default: ensure(false, "a task of this kind has no parts");
  }
}

void TaskRunner::allocate(const std::vector<int32_t>& slots) {
  for (int32_t slot : slots) {
    if (!own_.mine(slot)) continue;
    const auto memory = static_cast<size_t>(program_.slots[static_cast<size_t>(slot)].memory);
    // What several devices bring to the same slot of a host the first of them takes.
    std::unique_lock lock(host_mutex_, std::defer_lock);
    if (!program_.memories[memory].device.valid()) lock.lock();
    if (!slots_.holds(slot)) slots_.allocate(slot);
  }
}

std::string TaskRunner::label(TaskId id, int32_t part) const {
  const ProgramTask& task = program_.tasks[id.index()];
  std::string text(task_kind_name(task.kind));
  if (task.op.valid()) {
    const Op& op = training_.graph[task.op];
    text += " " + (op.forward.valid() ? training_.graph[op.forward].name : op.name);
  } else if (tasks_[id].tensor.valid()) {
    text += " " + training_.graph[tasks_[id].tensor].name;
  }
  if (task.micro_batch >= 0 && program_.micro_batches > 1)
    text += fmt::format(", micro-batch {}", task.micro_batch);
  if (program_.devices == 1) return text;
  if (part < 0) return text + ", on " + devices_of(id);
  const Part& one = task.parts[static_cast<size_t>(part)];
  return text + ", on " + program_.memories[static_cast<size_t>(one.memory)].name;
}

// "cpu0, cpu1"; of a move to other devices "cpu0 to cpu1".
std::string TaskRunner::devices_of(TaskId id) const {
  const auto names = [&](const std::vector<DeviceId>& devices) {
    std::string text;
    for (DeviceId device : devices)
      for (const RealMemory& memory : program_.memories)
        if (memory.device == device) text += (text.empty() ? "" : ", ") + memory.name;
    return text;
  };
  const Task& task = tasks_[id];
  const auto group = [&](int32_t index) -> const std::vector<DeviceId>& {
    return tasks_.groups[static_cast<size_t>(index)];
  };
  std::vector<DeviceId> devices;
  if (task.group >= 0) {
    devices = group(task.group);
  } else {
    for (LaneId lane : tasks_.lanes_of(id))
      for (DeviceId device : tasks_[tasks_[lane].team].devices) devices.push_back(device);
  }
  std::string text = names(devices);
  const bool between = task.kind == TaskKind::Collective || task.kind == TaskKind::Reduce ||
                       task.kind == TaskKind::Gather || task.kind == TaskKind::Send;
  if (between && task.how >= 0) {
    const int32_t to = tasks_.movements[static_cast<size_t>(task.how)].to_group;
    if (to >= 0 && group(to) != devices) text += " to " + names(group(to));
  }
  return text;
}

std::vector<at::Tensor> TaskRunner::operands(const std::vector<Operand>& list) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(list.size());
  for (const Operand& entry : list) tensors.push_back(slots_.operand(entry));
  return tensors;
}

std::vector<Result> TaskRunner::results(const std::vector<Operand>& list) const {
  std::vector<Result> made;
  made.reserve(list.size());
  for (const Operand& entry : list) {
    if (!entry.present())
      made.emplace_back();
    else if (entry.adds)
      made.emplace_back(entry.type, slots_.operand(entry));
    else
      made.emplace_back(entry.type);
  }
  return made;
}

void TaskRunner::keep(const std::vector<Operand>& list, std::span<Result> results) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].present() && !list[i].adds) slots_.adopt(list[i].slot, results[i].take());
}

RandomKey TaskRunner::random_key(TaskId id, OpId op) const {
  return {options_.seed, random_bits(options_.seed, static_cast<uint64_t>(op.index()),
                                     static_cast<uint64_t>(request_of(id).step))};
}

void TaskRunner::compute(TaskId id, const Part& part) {
  const ProgramTask& task = program_.tasks[id.index()];
  const Op& op = training_.graph[task.op];
  const ProgramPiece& run = program_.pieces[static_cast<size_t>(part.piece)];
  const std::vector<at::Tensor> inputs = operands(part.reads);
  const RandomKey random = random_key(id, run.forward);
  if (task.begins) {
    at::Tensor statistics = slots_.operand(part.statistics);
    return begin_piece(op, run.piece, inputs, random, statistics);
  }
  std::vector<Result> made = results(part.writes);
  const at::Tensor statistics = slots_.operand(part.statistics);
  run_piece(op, run.piece, inputs, made, random, task.kind == TaskKind::Recompute,
            statistics.defined() ? &statistics : nullptr);
  if (!op.forward.valid() && run.result >= 0) made[0].fill(run.result);
  if (part.counts_loss) note_loss(id, part, made[0].tensor());
  keep(part.writes, made);
}

void TaskRunner::note_loss(TaskId id, const Part& part, const at::Tensor& tensor) {
  const double loss = tensor.item().toDouble();
  const auto micro_batch = static_cast<size_t>(program_.tasks[id.index()].micro_batch);
  losses_[program_.step_of(id)][micro_batch][static_cast<size_t>(part.member)] = loss;
  // Nothing is updated yet, so that whoever asks why finds the weights that led here.
  if (!std::isfinite(loss) && !request_of(id).evaluates)
    fail(ErrorKind::Runtime, "the loss is {}", loss);
}

// Terms of a gradient that are added up.
void TaskRunner::sum(TaskId id, const Part& part) {
  std::vector<Result> made = results(part.writes);
  const std::vector<at::Tensor> terms = operands(part.reads);
  if (program_.tasks[id.index()].op.valid()) {
    const Attrs none = training_.graph[program_.tasks[id.index()].op].attrs;
    ForwardCall call = {.kind = OpKind::Accumulate,
                        .attributes = none,
                        .inputs = terms,
                        .outputs = made,
                        .auxiliaries = {}};
    run_forward(call);
  } else {
    made[0].set(part.writes[0].adds ? terms[0] : terms[0].clone());
  }
  keep(part.writes, made);
}

// `alone`: nothing computes beside it, and all threads copy.
void TaskRunner::copy(const Part& part, bool alone) {
  RealDevice& device = slots_.device(part.memory);
  const auto move = [&](const std::byte* from, std::byte* to, int64_t bytes) {
    device.copy(from, to, bytes, alone);
  };
  // What comes from other processes is not at hand.
  const auto inside = [&](int32_t from, int32_t to) { return own_.mine(from) && own_.mine(to); };
  for (const FlatCopy& copy : part.flat_copies) {
    if (!inside(copy.from, copy.to)) continue;
    const Slots::Ends ends = slots_.ends(copy);
    move(ends.from, ends.to, copy.bytes);
  }
  for (const PartCopy& copy : part.part_copies) {
    if (!inside(copy.from.slot, copy.to)) continue;
    const at::Tensor from = slots_.operand(copy.from);
    const auto to = slots_.bytes(copy.to);
    const auto* data = static_cast<const std::byte*>(from.data_ptr());
    if (copy.overlap.same())
      move(data, to.data(), copy.overlap.elements() * element_bytes(copy.dtype));
    else
      copy_overlap(copy.overlap, copy.dtype, data, to.data());
  }
}

void TaskRunner::compress(TaskId id, const Part& part) {
  const ProgramTask& task = program_.tasks[id.index()];
  const bool packs = task.kind == TaskKind::Compress;
  const Operand& small = packs ? part.writes[0] : part.reads[0];
  const Operand& large = packs ? part.reads[0] : part.writes[0];
  at::Tensor values = slots_.operand(large);
  at::Tensor packed = slots_.view(
      small.slot, 0, {DType::U8, {packed_bytes(element_count(large.type.shape), task.bits)}});
  if (!packs) return decompress(packed, task.bits, values);
  const uint64_t stream = random_bits(options_.seed, ~uint64_t{program_.in_step(id).index()},
                                      static_cast<uint64_t>(request_of(id).step));
  windlass::compress(values, task.bits,
                     {options_.seed, stream + static_cast<uint64_t>(part.member)}, packed);
}

void TaskRunner::add_squares(const Part& part) {
  double& sum = *slots_.operand(part.squares[0]).data_ptr<double>();
  if (!part.squares[0].adds) sum = 0;
  for (const Operand& gradient : part.squared) sum += sum_of_squares(slots_.operand(gradient));
}

// By how much gradients are scaled.
double TaskRunner::gradient_scale(TaskId id, const Part& part) {
  if (part.squares.empty()) return 1;
  double squares = 0;
  for (const Operand& term : part.squares) squares += *slots_.operand(term).data_ptr<double>();
  norms_[program_.step_of(id)] = std::sqrt(squares);
  return clip_scale(training_.options.clip_norm, squares);
}

at::Tensor TaskRunner::gradient(const WeightUpdate& update) const {
  const auto term = [&](const Operand& operand) {
    const at::Tensor found = slots_.operand(operand);
    if (operand.cuts.empty()) return found;
    return found.view({-1}).narrow(0, update.mine.begin, update.mine.size());
  };
  at::Tensor sum = term(update.gradients[0]);
  for (size_t i = 1; i < update.gradients.size(); ++i) sum.add_(term(update.gradients[i]));
  return sum;
}

void TaskRunner::update(TaskId id, const Part& part) {
  std::vector<at::Tensor> gradients;
  for (const WeightUpdate& entry : part.updates) {
    gradients.push_back(gradient(entry));
    if (!watch) continue;
    // Devices and the host may be updating at the same time.
    const std::lock_guard lock(watch_mutex_);
    const auto* data = static_cast<const std::byte*>(gradients.back().data_ptr());
    watch({update_op(entry.update).inputs[0],
           entry.region,
           entry.mine,
           {data, gradients.back().nbytes()}});
  }
  const double scale = gradient_scale(id, part);
  const StepRequest& request = request_of(id);
  for (size_t i = 0; i < part.updates.size(); ++i) {
    const WeightUpdate& entry = part.updates[i];
    at::Tensor weight = slots_.operand(entry.weight), master = slots_.operand(entry.master);
    std::vector<at::Tensor> states = operands(entry.states);
    update_weight(std::get<UpdateAttrs>(update_op(entry.update).attrs).optimizer,
                  request.hyperparameters, request.step, scale, weight, gradients[i],
                  master.defined() ? &master : nullptr, states);
  }
}

std::vector<double> TaskRunner::losses(size_t step) const {
  std::vector<double> sums;
  for (const auto& list : losses_[step])
    sums.push_back(std::accumulate(list.begin(), list.end(), 0.0));
  return sums;
}

double TaskRunner::loss(size_t step) const {
  double total = 0;
  for (const auto& list : losses_[step])
    for (double loss : list) total += loss;
  return program_.in_parts ? total : total / static_cast<double>(program_.micro_batches);
}

}  // namespace windlass
