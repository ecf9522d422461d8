#include "windlass/run/profile.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// Sizes of weights whose updates are measured; other sizes lie between them.
constexpr std::array<int64_t, 5> kUpdateSizes = {1, 1 << 10, 1 << 14, 1 << 18, 1 << 22};

std::string key_of(const UpdateVariant& variant, int64_t elements) {
  return fmt::format("Update {} {} {}{} {}", enum_name(variant.optimizer),
                     dtype_name(variant.weight), dtype_name(variant.gradient),
                     variant.master ? " master" : "", elements);
}

UpdateVariant variant_of(const Graph& graph, const Op& update) {
  return {std::get<UpdateAttrs>(update.attrs).optimizer, graph[update.inputs[0]].type.dtype,
          graph[update.inputs[1]].type.dtype, update.inputs.size() > 2 && update.inputs[2].valid()};
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

}  // namespace

const KernelPrice& KernelProfile::known_or(const std::string& key,
                                           const std::function<KernelPrice()>& measure) {
  const auto found = prices_.find(key);
  if (found != prices_.end()) return found->second;
  if (progress) progress(prices_.size());
  const auto begin = Clock::now();
  const KernelPrice measured = measure();
  spent_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return prices_.emplace(key, measured).first->second;
}

const KernelPrice& KernelProfile::price(const TrainingGraph& training, OpId op, uint64_t adds) {
  return known_or(key_of(training, training.graph[op], adds), [&] {
    return runtime_().measure_op(training.graph, training.graph[op], adds, threads_);
  });
}

Nanoseconds KernelProfile::update_price(const UpdateVariant& variant, int64_t elements,
                                        const std::function<void(const std::string&)>& used) {
  const auto at = [&](size_t size) {
    const std::string key = key_of(variant, kUpdateSizes[size]);
    if (used) used(key);
    const auto measure = [&] {
      return KernelPrice{runtime_().measure_update(variant, kUpdateSizes[size], threads_), 0};
    };
    return static_cast<double>(known_or(key, measure).time);
  };
  size_t above = 1;
  while (above + 1 < kUpdateSizes.size() && kUpdateSizes[above] < elements) ++above;
  const double less = at(above - 1), more = at(above);
  const auto below = static_cast<double>(kUpdateSizes[above - 1]);
  const double slope = (more - less) / (static_cast<double>(kUpdateSizes[above]) - below);
  return std::max<Nanoseconds>(
      1, static_cast<Nanoseconds>(less + slope * (static_cast<double>(elements) - below)));
}

template <typename Visit>
void KernelProfile::for_kernels(const TaskGraph& tasks, Visit&& visit) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks.tasks[i];
    if (!task.op.valid() || moves(task.kind) || task.begins) continue;
    uint64_t adds = 0;
    for (const Use& use : tasks.uses_of(TaskId(i)))
      if (use.adds && use.index < 64) adds |= uint64_t{1} << use.index;
    visit(i, task.op, adds);
  }
}

template <typename Visit>
void KernelProfile::for_updates(const TrainingGraph& training, const TaskGraph& tasks,
                                Visit&& visit) {
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskKind kind = tasks.tasks[i].kind;
    if (kind != TaskKind::Update && kind != TaskKind::HostUpdate) continue;
    bool first = true;
    for (const Use& use : tasks.uses_of(TaskId(i))) {
      if (use.kind != UseKind::Weight) continue;
      visit(i, training.graph.ops[first_update + use.index], first);
      first = false;
    }
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
  for_kernels(tasks, [&](size_t task, OpId op, uint64_t adds) {
    Known& entry = known[op.index()];
    if (entry.price == nullptr || entry.adds != adds) entry = {adds, &price(training, op, adds)};
    times.duration[task] = entry.price->time;
    times.workspace[task] = entry.price->workspace;
  });
  if (!prices_updates_) return;
  std::vector<Nanoseconds> updates(training.graph.tensors.size(), 0);  // by weight
  for_updates(training, tasks, [&](size_t task, const Op& update, bool first) {
    Nanoseconds& time = updates[update.inputs[0].index()];
    if (time == 0)
      time = update_price(variant_of(training.graph, update),
                          element_count(training.graph[update.inputs[0]].type.shape));
    times.duration[task] = time + (first ? 0 : times.duration[task]);
  });
}

void KernelProfile::know(const std::vector<MeasuredKernel>& kernels) {
  bool updates = kernels.empty();
  for (const MeasuredKernel& kernel : kernels) {
    prices_[kernel.kernel] = {kernel.time_ns, kernel.workspace_bytes};
    updates |= kernel.kernel.starts_with("Update ");
  }
  prices_updates_ &= updates;
}

std::vector<MeasuredKernel> KernelProfile::used_by(const TrainingGraph& training,
                                                   const TaskGraph& tasks) {
  std::map<std::string, MeasuredKernel> used;
  for_kernels(tasks, [&](size_t, OpId op, uint64_t adds) {
    price(training, op, adds);
    const std::string key = key_of(training, training.graph[op], adds);
    used[key] = {key, 0, 0};
  });
  if (prices_updates_)
    for_updates(training, tasks, [&](size_t, const Op& update, bool) {
      update_price(variant_of(training.graph, update),
                   element_count(training.graph[update.inputs[0]].type.shape),
                   [&](const std::string& key) {
                     used[key] = {key, 0, 0};
                   });
    });
  for (auto& [key, kernel] : used) kernel = {key, prices_.at(key).time, prices_.at(key).workspace};
  std::vector<MeasuredKernel> list;
  for (const auto& [key, kernel] : used) list.push_back(kernel);
  return list;
}

}  // namespace windlass
