#include "windlass/run/profile.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// Sizes of weights whose updates are measured; other sizes lie between them.
constexpr std::array<int64_t, 5> kUpdateSizes = {1, 1 << 10, 1 << 14, 1 << 18, 1 << 22};
// And of saved tensors that are compressed.
constexpr std::array<int64_t, 4> kCompressionSizes = {1 << 6, 1 << 12, 1 << 16, 1 << 20};

constexpr std::string_view kUpdateKey = "Update ", kCompressKey = "Compress ",
                           kDecompressKey = "Decompress ";

std::string key_of(const UpdateVariant& variant, int64_t elements) {
  return fmt::format("{}{} {} {}{} {}", kUpdateKey, enum_name(variant.optimizer),
                     dtype_name(variant.weight), dtype_name(variant.gradient),
                     variant.master ? " master" : "", elements);
}

std::string key_of(const CompressionVariant& variant, int64_t elements) {
  return fmt::format("{}{} {} bits {}", variant.back ? kDecompressKey : kCompressKey,
                     dtype_name(variant.dtype), variant.bits, elements);
}

UpdateVariant variant_of(const Graph& graph, const Op& update) {
  return {std::get<UpdateAttrs>(update.attrs).optimizer, graph[update.inputs[0]].type.dtype,
          graph[update.inputs[1]].type.dtype, update.inputs.size() > 2 && update.inputs[2].valid()};
}

}  // namespace

const KernelPrice& KernelProfile::known_or(const std::string& key,
                                           const std::function<KernelPrice()>& measure) {
  const auto found = prices_.find(key);
  if (found != prices_.end()) return found->second;
  if (progress) progress(prices_.size());
  const auto begin = Clock::now();
  others_.begin();
  const KernelPrice measured = measure();
  others_.end();
  spent_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  measured_.push_back(key);
  return prices_.emplace(key, measured).first->second;
}

const KernelPrice& KernelProfile::price(const KernelRun& run) {
  return known_or(key_of(run), [&] { return runtime_().measure_op(run, threads_, devices_); });
}

const KernelPrice& KernelProfile::price(const TaskKernels& kernels, const TaskGraph& tasks,
                                        const TrainingGraph& training, TaskId id) {
  if (kernels.whole(id)) {
    const Graph& graph = training.of(tasks[id].micro_batch).graph;
    return known_or(key_of(graph, graph[tasks[id].op], kernels.adds(id)),
                    [&] { return runtime_().measure_op(kernels.run(id), threads_, devices_); });
  }
  const KernelPrice*& known = pieces_[kernels.origin(id)];
  if (known == nullptr) known = &price(kernels.run(id));
  return *known;
}

template <size_t kSizes, typename At>
Nanoseconds KernelProfile::between(const std::array<int64_t, kSizes>& sizes, int64_t elements,
                                   const At& at) {
  size_t above = 1;
  while (above + 1 < kSizes && sizes[above] < elements) ++above;
  const double less = at(above - 1), more = at(above);
  const auto below = static_cast<double>(sizes[above - 1]);
  const double slope = (more - less) / (static_cast<double>(sizes[above]) - below);
  return std::max<Nanoseconds>(
      1, static_cast<Nanoseconds>(less + slope * (static_cast<double>(elements) - below)));
}

Nanoseconds KernelProfile::update_price(const UpdateVariant& variant, int64_t elements,
                                        const std::function<void(const std::string&)>& used) {
  const auto at = [&](size_t size) {
    const std::string key = key_of(variant, kUpdateSizes[size]);
    if (used) used(key);
    const auto measure = [&] {
      return KernelPrice{runtime_().measure_update(variant, kUpdateSizes[size], threads_, devices_),
                         0};
    };
    return static_cast<double>(known_or(key, measure).time);
  };
  return between(kUpdateSizes, elements, at);
}

Nanoseconds KernelProfile::compression_price(const CompressionVariant& variant, int64_t elements,
                                             const std::function<void(const std::string&)>& used) {
  const auto at = [&](size_t size) {
    const int64_t count = kCompressionSizes[size];
    const std::string key = key_of(variant, count);
    if (used) used(key);
    return static_cast<double>(
        known_or(key, [&] {
          return KernelPrice{runtime_().measure_compression(variant, count, threads_, devices_), 0};
        }).time);
  };
  return between(kCompressionSizes, elements, at);
}

template <typename Visit>
void KernelProfile::for_updates(const TrainingGraph& training, const TaskGraph& tasks,
                                const TaskKernels& kernels, Visit&& visit) {
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskKind kind = tasks.tasks[i].kind;
    if (kind != TaskKind::Update && kind != TaskKind::HostUpdate) continue;
    bool first = true;
    for (const Use& use : tasks.uses_of(TaskId(i))) {
      if (use.kind != UseKind::Weight) continue;
      const Op& update = training.graph.ops[first_update + use.index];
      visit(i, update, kernels.updated_elements(TaskId(i), use, update), first);
      first = false;
    }
  }
}

template <typename Visit>
void KernelProfile::for_compressions(const TrainingGraph& training, const TaskGraph& tasks,
                                     Visit&& visit) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks.tasks[i];
    const bool back = task.kind == TaskKind::Decompress;
    if (!back && task.kind != TaskKind::Compress) continue;
    const DType dtype = training.graph[task.tensor].type.dtype;
    for (const Use& use : tasks.uses_of(TaskId(i)))
      if ((use.kind == UseKind::To) == back)
        visit(i, CompressionVariant{dtype, task.how, back},
              tasks[use.buffer].bytes.value / element_bytes(dtype));
  }
}

void KernelProfile::reprice(const TrainingGraph& training, const TaskGraph& tasks,
                            TaskTimes& times) {
  for (size_t i = 0; i < tasks.size(); ++i)
    if (!moves(tasks.tasks[i].kind)) times.workspace[i] = 0;  // updates and sums work in place
  const TaskKernels kernels(training, tasks);
  // Most whole ops have one variant, which is looked up once.
  struct Known {
    uint64_t adds = 0;
    const TrainingGraph* sizes = nullptr;
    const KernelPrice* price = nullptr;
  };
  std::vector<Known> known(training.graph.ops.size());
  std::map<TaskKernels::Number, const KernelPrice*> pieces;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskId id(i);
    if (!kernels.has(id)) continue;
    const KernelPrice* price = nullptr;
    if (kernels.whole(id)) {
      Known& entry = known[tasks[id].op.index()];
      const uint64_t adds = kernels.adds(id);
      const TrainingGraph* sizes = &training.of(tasks[id].micro_batch);
      if (entry.price == nullptr || entry.adds != adds || entry.sizes != sizes)
        entry = {adds, sizes, &this->price(kernels, tasks, training, id)};
      price = entry.price;
    } else {
      const KernelPrice*& entry = pieces[kernels.number(id)];
      if (entry == nullptr) entry = &this->price(kernels, tasks, training, id);
      price = entry;
    }
    times.duration[i] = price->time;
    times.workspace[i] = price->workspace;
  }
  for (size_t i = 0; i < tasks.size(); ++i)
    if (!moves(tasks.tasks[i].kind)) times.workspace[i] += kernels.copied_bytes(TaskId(i));
  if (prices_compression_)
    for_compressions(training, tasks,
                     [&](size_t task, const CompressionVariant& variant, int64_t elements) {
                       times.duration[task] = compression_price(variant, elements);
                     });
  if (!prices_updates_) return;
  std::map<std::pair<TensorId, int64_t>, Nanoseconds> updates;  // by weight and elements
  for_updates(training, tasks, kernels,
              [&](size_t task, const Op& update, int64_t elements, bool first) {
                Nanoseconds& time = updates[{update.inputs[0], elements}];
                if (time == 0) time = update_price(variant_of(training.graph, update), elements);
                times.duration[task] = time + (first ? 0 : times.duration[task]);
              });
}

void KernelProfile::know(const std::vector<MeasuredKernel>& kernels) {
  bool updates = kernels.empty(), compression = kernels.empty();
  for (const MeasuredKernel& kernel : kernels) {
    prices_[kernel.kernel] = {kernel.time_ns, kernel.workspace_bytes};
    updates |= kernel.kernel.starts_with(kUpdateKey);
    compression |= kernel.kernel.starts_with(kCompressKey);
  }
  prices_updates_ &= updates;
  prices_compression_ &= compression;
}

void KernelProfile::remember(const std::vector<MeasuredKernel>& kernels) {
  for (const MeasuredKernel& kernel : kernels)
    prices_.try_emplace(kernel.kernel, KernelPrice{kernel.time_ns, kernel.workspace_bytes});
}

void KernelProfile::correct(const std::vector<MeasuredKernel>& kernels, double updates) {
  for (const MeasuredKernel& kernel : kernels)
    prices_[kernel.kernel] = {kernel.time_ns, kernel.workspace_bytes};
  for (auto& [key, price] : prices_)
    if (key.starts_with(kUpdateKey))
      price.time =
          std::max<Nanoseconds>(1, std::llround(static_cast<double>(price.time) * updates));
}

std::vector<MeasuredKernel> KernelProfile::measured() const {
  std::vector<MeasuredKernel> list;
  for (const std::string& key : measured_) {
    const KernelPrice& price = prices_.at(key);
    list.push_back({key, price.time, price.workspace});
  }
  return list;
}

std::vector<MeasuredKernel> KernelProfile::used_by(const TrainingGraph& training,
                                                   const TaskGraph& tasks) {
  std::map<std::string, MeasuredKernel> used;
  const TaskKernels kernels(training, tasks);
  std::set<TaskKernels::Number> seen;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!kernels.has(TaskId(i)) || !seen.insert(kernels.number(TaskId(i))).second) continue;
    const KernelRun run = kernels.run(TaskId(i));
    price(run);
    const std::string key = key_of(run);
    used[key] = {key, 0, 0};
  }
  if (prices_updates_)
    for_updates(training, tasks, kernels, [&](size_t, const Op& update, int64_t elements, bool) {
      update_price(variant_of(training.graph, update), elements, [&](const std::string& key) {
        used[key] = {key, 0, 0};
      });
    });
  if (prices_compression_)
    for_compressions(training, tasks,
                     [&](size_t, const CompressionVariant& variant, int64_t elements) {
                       compression_price(variant, elements, [&](const std::string& key) {
                         used[key] = {key, 0, 0};
                       });
                     });
  for (auto& [key, kernel] : used) kernel = {key, prices_.at(key).time, prices_.at(key).workspace};
  std::vector<MeasuredKernel> list;
  for (const auto& [key, kernel] : used) list.push_back(kernel);
  return list;
}

}  // namespace windlass
