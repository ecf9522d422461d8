#include "windlass/runtime/task_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include <ATen/Parallel.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/runtime/kernels/compress.h"
#include "windlass/runtime/kernels/errors.h"
#include "windlass/runtime/kernels/update_kernels.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// Copies with all threads that the caller's kernels may use.
void plain_copy(std::span<const std::byte> from, std::byte* to) {
  constexpr int64_t kGrain = 1 << 18;  // bytes worth a thread
  at::parallel_for(0, static_cast<int64_t>(from.size()), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from.data() + begin, static_cast<size_t>(end - begin));
  });
}

// Copies no faster than `bandwidth`, in pieces that take a fraction of a millisecond.
void paced_copy(std::span<const std::byte> from, std::byte* to, BytesPerSecond bandwidth,
                Clock::time_point& begin, int64_t& done) {
  const size_t piece =
      std::clamp<size_t>(static_cast<size_t>(bandwidth.value / 4000), 1 << 14, 1 << 24);
  for (size_t at = 0; at < from.size(); at += piece) {
    const size_t size = std::min(piece, from.size() - at);
    std::memcpy(to + at, from.data() + at, size);
    done += static_cast<int64_t>(size);
    const std::chrono::duration<double> due(static_cast<double>(done) / bandwidth.value);
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(due));
  }
}

}  // namespace

TaskRunner::TaskRunner(const TrainingGraph& training, const TaskGraph& tasks,
                       const Program& program, Slots& slots, const ExecutorOptions& options)
    : training_(training), tasks_(tasks), program_(program), slots_(slots), options_(options) {
  int32_t micro_batches = 1;
  for (const Task& task : tasks.tasks)
    micro_batches = std::max(micro_batches, task.micro_batch + 1);
  losses_.resize(static_cast<size_t>(micro_batches));
}

void TaskRunner::begin_step(const StepRequest& request) {
  request_ = request;
  norm_ = 0;
  losses_.assign(losses_.size(), 0);
  ensure(losses_.size() == 1 || request.mean_counts.size() == training_.graph.ops.size(),
         "micro-batches do not know what their means divide by");
}

void TaskRunner::run(TaskId id) {
  const ProgramTask& task = program_.tasks[id.index()];
  try {
    switch (task.kind) {
      case TaskKind::Forward:
      case TaskKind::Recompute:
      case TaskKind::Backward: return task.op.valid() ? compute(task) : sum(task);
      case TaskKind::Update:
      case TaskKind::HostUpdate: return update(task);
      case TaskKind::Norm: return add_squares(task);
      case TaskKind::SwapIn:
      case TaskKind::SwapOut: return copy(task);
      case TaskKind::Compress:
      case TaskKind::Decompress: return compress(task, id);
      default: ensure(false, "a task of this kind cannot be run");
    }
  } catch (...) {
    rethrow_within(label(id));
  }
}

std::string TaskRunner::label(TaskId id) const {
  const ProgramTask& task = program_.tasks[id.index()];
  std::string text(task_kind_name(task.kind));
  if (task.op.valid()) {
    const Op& op = training_.graph[task.op];
    text += " " + (op.forward.valid() ? training_.graph[op.forward].name : op.name);
  } else if (tasks_[id].tensor.valid()) {
    text += " " + training_.graph[tasks_[id].tensor].name;
  }
  if (task.micro_batch >= 0 && losses_.size() > 1)
    text += fmt::format(", micro-batch {}", task.micro_batch);
  return text;
}

at::Tensor TaskRunner::operand(const Operand& operand) const {
  if (!operand.buffer.valid()) return {};
  return slots_.view(operand.buffer, training_.graph[operand.tensor].type);
}

std::vector<at::Tensor> TaskRunner::operands(const std::vector<Operand>& list) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(list.size());
  for (const Operand& entry : list) tensors.push_back(operand(entry));
  return tensors;
}

std::vector<Result> TaskRunner::results(const std::vector<Operand>& list) const {
  std::vector<Result> made;
  made.reserve(list.size());
  for (const Operand& entry : list) {
    if (!entry.buffer.valid())
      made.emplace_back();
    else if (entry.adds)
      made.emplace_back(training_.graph[entry.tensor].type, operand(entry));
    else
      made.emplace_back(training_.graph[entry.tensor].type);
  }
  return made;
}

void TaskRunner::keep(const std::vector<Operand>& list, std::span<Result> results) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].buffer.valid() && !list[i].adds) slots_.adopt(list[i].buffer, results[i].take());
}

RandomKey TaskRunner::random_key(OpId id) const {
  return {options_.seed, random_bits(options_.seed, static_cast<uint64_t>(id.index()),
                                     static_cast<uint64_t>(request_.step))};
}

// Micro-batches draw from one stream, each where its samples lie in the batch: cutting the batch
// changes no number.
PieceFacts TaskRunner::facts_of(OpId id, int32_t micro_batch) const {
  PieceFacts facts;
  const auto parts = static_cast<int64_t>(losses_.size());
  if (parts == 1) return facts;
  const Op& op = training_.graph[id];
  TensorId drawn;
  Shape shape;
  if (op.kind == OpKind::Attention) {
    drawn = op.inputs[0];
    const Shape& q = training_.graph[drawn].type.shape;
    shape = {q[0], q[1], q[2], training_.graph[op.inputs[1]].type.shape[2]};
  } else if (op.kind == OpKind::Dropout || op.kind == OpKind::Random) {
    drawn = op.outputs[0];
    shape = training_.graph[drawn].type.shape;
  }
  if (!drawn.valid() || micro_batch < 0) return facts;
  const int32_t axis = options_.sample_axes.empty() ? 0 : options_.sample_axes[drawn.index()];
  if (axis < 0) return facts;
  for (int64_t size : shape) facts.random.push_back({size, {0, size}});
  AxisPart& samples = facts.random[static_cast<size_t>(axis)];
  samples = {samples.size * parts, {samples.size * micro_batch, samples.size * (micro_batch + 1)}};
  return facts;
}

void TaskRunner::compute(const ProgramTask& task) {
  const Op& op = training_.graph[task.op];
  const std::vector<at::Tensor> inputs = operands(task.reads);
  std::vector<Result> made = results(task.writes);
  const OpId forward = op.forward.valid() ? op.forward : task.op;
  run_op(training_.graph, op, inputs, made, random_key(forward), task.kind == TaskKind::Recompute,
         facts_of(forward, task.micro_batch),
         losses_.size() == 1 ? -1 : request_.mean_counts[forward.index()]);
  if (task.kind == TaskKind::Forward && !op.outputs.empty() &&
      op.outputs[0] == training_.graph.loss) {
    const double loss = made[0].tensor().item().toDouble();
    losses_[static_cast<size_t>(task.micro_batch)] = loss;
    // Nothing is updated yet, so that whoever asks why finds the weights that led here.
    if (!std::isfinite(loss)) fail(ErrorKind::Runtime, "the loss is {}", loss);
  }
  keep(task.writes, made);
}

// Terms of a weight's gradient that are added apart.
void TaskRunner::sum(const ProgramTask& task) {
  std::vector<Result> made = results(task.writes);
  made[0].set(task.writes[0].adds ? operand(task.reads[0]) : operand(task.reads[0]).clone());
  keep(task.writes, made);
}

void TaskRunner::copy(const ProgramTask& task) {
  auto begin = Clock::now();
  int64_t done = 0;
  for (size_t i = 0; i < task.reads.size(); ++i) {
    const std::span<std::byte> target = slots_.bytes(task.writes[i].buffer);
    std::span<const std::byte> source = slots_.bytes(task.reads[i].buffer);
    // Devices round the size of a buffer up, the host and kernels do not.
    ensure(source.size() < target.size() + kAllocationUnit, "a copy does not fit where it goes");
    source = source.first(std::min(source.size(), target.size()));
    const BytesPerSecond bandwidth = task.kind == TaskKind::SwapIn ? in_ : out_;
    if (bandwidth.value > 0)
      paced_copy(source, target.data(), bandwidth, begin, done);
    else
      plain_copy(source, target.data());
  }
}

void TaskRunner::compress(const ProgramTask& task, TaskId id) {
  const bool packs = task.kind == TaskKind::Compress;
  const BufferId small = packs ? task.writes[0].buffer : task.reads[0].buffer;
  const BufferId large = packs ? task.reads[0].buffer : task.writes[0].buffer;
  const TensorType& type = training_.graph[tasks_[large].tensor].type;
  at::Tensor values = slots_.view(large, type);
  const int bits = task.bits;
  at::Tensor packed =
      slots_.view(small, {DType::U8, {packed_bytes(element_count(type.shape), bits)}});
  if (packs)
    windlass::compress(values, bits,
                       {options_.seed, random_bits(options_.seed, ~uint64_t{id.index()},
                                                   static_cast<uint64_t>(request_.step))},
                       packed);
  else
    decompress(packed, bits, values);
}

void TaskRunner::add_squares(const ProgramTask& task) {
  double& sum = *operand(task.squares[0]).data_ptr<double>();
  if (!task.squares[0].adds) sum = 0;
  for (const WeightUpdate& entry : task.updates)
    sum += sum_of_squares(
        slots_.view(entry.gradients[0], training_.graph[update_op(entry.update).inputs[1]].type));
}

// By how much gradients are scaled.
double TaskRunner::gradient_scale(const ProgramTask& task) {
  if (task.squares.empty()) return 1;
  double squares = 0;
  for (const Operand& term : task.squares) squares += *operand(term).data_ptr<double>();
  norm_ = std::sqrt(squares);
  return clip_scale(training_.options.clip_norm, squares);
}

void TaskRunner::update(const ProgramTask& task) {
  for (const WeightUpdate& entry : task.updates) {
    const Op& op = update_op(entry.update);
    const Graph& graph = training_.graph;
    at::Tensor gradient = slots_.view(entry.gradients[0], graph[op.inputs[1]].type);
    for (size_t i = 1; i < entry.gradients.size(); ++i)
      gradient.add_(slots_.view(entry.gradients[i], graph[op.inputs[1]].type));
    if (watch) {
      // The device and the host may be updating at the same time.
      const std::lock_guard lock(watch_mutex_);
      watch(op.inputs[0], slots_.bytes(entry.gradients[0]));
    }
  }
  const double scale = gradient_scale(task);
  for (const WeightUpdate& entry : task.updates) {
    const Op& op = update_op(entry.update);
    const Graph& graph = training_.graph;
    at::Tensor weight = slots_.view(entry.weight, graph[op.inputs[0]].type);
    const at::Tensor gradient = slots_.view(entry.gradients[0], graph[op.inputs[1]].type);
    at::Tensor master;
    std::vector<at::Tensor> states;
    int64_t offset = 0;
    for (size_t i = 2; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid()) continue;
      const TensorType& type = graph[op.inputs[i]].type;
      at::Tensor state = slots_.part(entry.state, offset, type);
      offset += byte_size(type).value;
      if (i == 2)
        master = std::move(state);
      else
        states.push_back(std::move(state));
    }
    update_weight(std::get<UpdateAttrs>(op.attrs).optimizer, request_.hyperparameters,
                  request_.step, scale, weight, gradient, master.defined() ? &master : nullptr,
                  states);
  }
}

double TaskRunner::loss() const {
  double total = 0;
  for (double loss : losses_) total += loss;
  return total / static_cast<double>(losses_.size());
}

}  // namespace windlass
