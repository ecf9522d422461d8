#include "windlass/runtime/profile.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel is repeated until it has been run so often, or for so long.
constexpr int kRepeats = 5;
constexpr auto kPatience = std::chrono::milliseconds(60);

Nanoseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

// Of the calling thread: what others take of its core does not count.
Nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return Nanoseconds{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Indices are 0, which exists in every table; other values are positive and of moderate size.
at::Tensor operand(const TensorType& type) {
  if (!type.present()) return {};
  at::Tensor tensor = at::zeros(type.shape, scalar_type(type.dtype));
  if (is_float(type.dtype)) tensor.uniform_(0.25, 1);
  return tensor;
}

std::string key_of(const TrainingGraph& training, const Op& op, uint64_t adds) {
  std::string key = fmt::format("{} {} {} {}", op_info(op.kind).name, static_cast<int>(op.pass),
                                format_attrs(op.attrs), adds);
  for (const auto* list : {&op.inputs, &op.outputs, &op.auxiliaries})
    for (TensorId id : *list) {
      key += id.valid() ? ' ' + format_type(training.graph[id].type) : " -";
    }
  // Gradients of inputs that are not wanted leave no trace in the types.
  if (op.forward.valid())
    for (TensorId id : training.graph[op.forward].inputs)
      key += id.valid() ? '/' + format_type(training.graph[id].type) : "/-";
  return key;
}

// An op with operands made up for it, ready to be run again and again.
class Rehearsal {
 public:
  Rehearsal(const TrainingGraph& training, const Op& op, uint64_t adds)
      : graph_(training.graph), op_(op), adds_(adds) {
    for (TensorId id : op.inputs) inputs_.push_back(operand(graph_.type_of(id)));
    if (op.forward.valid())
      for (TensorId id : graph_[op.forward].inputs) types_.push_back(graph_.type_of(id));
    for (size_t i = 0; i < op.outputs.size(); ++i)
      sums_.push_back(adds_to(i) ? operand(graph_.type_of(op.outputs[i])) : at::Tensor());
  }

  // Bytes of the results, as they are counted.
  int64_t run(const Arena& arena) {
    std::vector<Result> made;
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      const TensorType type = graph_.type_of(op_.outputs[i]);
      made.push_back(adds_to(i) ? Result(type, sums_[i]) : Result(type));
    }
    const size_t outputs = made.size();
    for (TensorId id : op_.auxiliaries) made.emplace_back(graph_.type_of(id));
    if (op_.forward.valid()) {
      const size_t gradients = inputs_.size() - op_.saved.size();
      BackwardCall call = {.kind = op_.kind,
                           .attributes = op_.attrs,
                           .input_types = types_,
                           .gradients = std::span(inputs_).first(gradients),
                           .saved_refs = op_.saved,
                           .saved = std::span(inputs_).subspan(gradients),
                           .results = made};
      run_backward(call);
    } else {
      ForwardCall call = {.kind = op_.kind,
                          .attributes = op_.attrs,
                          .inputs = inputs_,
                          .outputs = std::span(made).first(outputs),
                          .auxiliaries = std::span(made).subspan(outputs)};
      run_forward(call);
    }
    int64_t bytes = 0;
    for (size_t i = 0; i < made.size(); ++i)
      if (made[i].wanted() && !made[i].adds())
        bytes += arena.rounded(byte_size(made[i].type()).value);
    return bytes;
  }

 private:
  bool adds_to(size_t i) const { return i < 64 && (adds_ >> i & 1) != 0; }

  const Graph& graph_;
  const Op& op_;
  const uint64_t adds_;
  std::vector<at::Tensor> inputs_, sums_;
  std::vector<TensorType> types_;
};

}  // namespace

KernelPrice KernelProfile::measure(const TrainingGraph& training, OpId op, uint64_t adds) const {
  install_allocator();
  KernelPrice price;
  std::exception_ptr error;
  // A thread of its own, as a device has it.
  std::thread worker([&] {
    try {
      use_threads(threads_);
      set_blas_threads(threads_);
      Arena arena("profile", kNoLimit, kAllocationUnit);
      const ArenaScope scope(arena);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      Rehearsal rehearsal(training, training.graph[op], adds);
      arena.reset_peak();
      const int64_t before = arena.statistics().live;
      const int64_t results = rehearsal.run(arena);
      price.workspace = std::max<int64_t>(0, arena.statistics().peak - before - results);
      std::vector<Nanoseconds> times;
      const auto begin = Clock::now();
      while (times.size() < kRepeats && (times.empty() || Clock::now() - begin < kPatience)) {
        const auto start = Clock::now();
        const Nanoseconds worked = thread_time();
        rehearsal.run(arena);
        times.push_back(threads_ == 1 ? thread_time() - worked : since(start));
      }
      // Whatever else runs on the host only adds.
      price.time = std::max<Nanoseconds>(1, std::ranges::min(times));
    } catch (...) {
      error = std::current_exception();
    }
  });
  worker.join();
  if (error) std::rethrow_exception(error);
  return price;
}

const KernelPrice& KernelProfile::price(const TrainingGraph& training, OpId op, uint64_t adds) {
  const std::string key = key_of(training, training.graph[op], adds);
  const auto found = prices_.find(key);
  if (found != prices_.end()) return found->second;
  if (progress) progress(prices_.size());
  const auto begin = Clock::now();
  const KernelPrice measured = measure(training, op, adds);
  spent_ += since(begin);
  return prices_.emplace(key, measured).first->second;
}

template <typename Visit>
void KernelProfile::for_kernels(const TrainingGraph& training, const TaskGraph& tasks,
                                Visit&& visit) {
  std::vector<bool> written(tasks.buffers.size());
  for (size_t i = 0; i < tasks.buffers.size(); ++i) written[i] = tasks.buffers[i].at_start;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks.tasks[i];
    const auto uses = tasks.uses_of(TaskId(i));
    if (task.op.valid() && !moves(task.kind)) {
      // Results are the last of what a task uses, one for each that is present.
      const Op& op = training.graph[task.op];
      uint64_t adds = 0;
      size_t results = 0;
      for (const auto* list : {&op.outputs, &op.auxiliaries})
        for (TensorId id : *list) results += id.valid() ? 1 : 0;
      size_t at = uses.size() - results;
      for (size_t k = 0; k < op.outputs.size(); ++k)
        if (op.outputs[k].valid() && written[uses[at++].buffer.index()] && k < 64)
          adds |= uint64_t{1} << k;
      visit(i, task.op, adds);
    }
    for (const Use& use : uses)
      if (use.write) written[use.buffer.index()] = true;
  }
}

void KernelProfile::reprice(const TrainingGraph& training, const TaskGraph& tasks,
                            TaskTimes& times) {
  for (size_t i = 0; i < tasks.size(); ++i)
    if (!moves(tasks.tasks[i].kind)) times.workspace[i] = 0;  // updates and sums work in place
  // Most ops have one variant, which is looked up once.
  struct Known {
    uint64_t adds = 0;
    const KernelPrice* price = nullptr;
  };
  std::vector<Known> known(training.graph.ops.size());
  for_kernels(training, tasks, [&](size_t task, OpId op, uint64_t adds) {
    Known& entry = known[op.index()];
    if (entry.price == nullptr || entry.adds != adds) entry = {adds, &price(training, op, adds)};
    times.duration[task] = entry.price->time;
    times.workspace[task] = entry.price->workspace;
  });
}

void KernelProfile::know(const std::vector<MeasuredKernel>& kernels) {
  for (const MeasuredKernel& kernel : kernels)
    prices_[kernel.kernel] = {kernel.time_ns, kernel.workspace_bytes};
}

std::vector<MeasuredKernel> KernelProfile::used_by(const TrainingGraph& training,
                                                   const TaskGraph& tasks) {
  std::map<std::string, MeasuredKernel> used;
  for_kernels(training, tasks, [&](size_t, OpId op, uint64_t adds) {
    const std::string key = key_of(training, training.graph[op], adds);
    const KernelPrice& found = price(training, op, adds);
    used[key] = {key, found.time, found.workspace};
  });
  std::vector<MeasuredKernel> list;
  for (const auto& [key, kernel] : used) list.push_back(kernel);
  return list;
}

}  // namespace windlass
