// What kernels really take on this host: time and workspace of each op of a training graph, or of
// the piece of it that a device has, measured by running it alone, or on all devices at once.
// Predictions made from it are of the same kernels that train.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/plan/plan.h"
#include "windlass/run/kernel_run.h"
#include "windlass/run/other_load.h"
#include "windlass/run/runtime.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// Kernels are measured when they are asked for first, and known by kind, attributes and types
// afterwards: one profile serves many graphs. Not shared between threads.
class KernelProfile {
 public:
  // Kernels are run with so many threads on each of so many devices of this host, which share its
  // memory and caches. `runtime` is called when a kernel has to be measured: who knows all prices
  // needs none.
  explicit KernelProfile(int threads = 1, int devices = 1,
                         std::function<Runtime&()> runtime = open_runtime)
      : threads_(threads), devices_(devices), runtime_(std::move(runtime)) {}
  KernelProfile(int threads, std::function<Runtime&()> runtime)
      : KernelProfile(threads, 1, std::move(runtime)) {}

  // Called before each kernel that has to be measured: how many are known so far.
  std::function<void(size_t known)> progress;

  const KernelPrice& price(const KernelRun& run);

  // Of one weight with so many elements, on the device or on the host: the same cores update. A few
  // sizes are measured. `used` is told the names of those that count.
  Nanoseconds update_price(const UpdateVariant& variant, int64_t elements,
                           const std::function<void(const std::string&)>& used = {});

  // Of compressing a saved tensor with so many elements, or getting it back: likewise.
  Nanoseconds compression_price(const CompressionVariant& variant, int64_t elements,
                                const std::function<void(const std::string&)>& used = {});

  // Replaces, in the times of a graph that was lowered for devices of this host, those of all tasks
  // that run kernels of ops, update weights or compress.
  void reprice(const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times);

  // Prices known from elsewhere: a plan. If it has kernels but no updates, or compresses without a
  // price for it, those were not measured, and keep the prices that they have.
  void know(const std::vector<MeasuredKernel>& kernels);
  // Prices measured on this host before. What is known already stays as it is.
  void remember(const std::vector<MeasuredKernel>& kernels);
  // Prices of kernels as they ran in steps, in place of what they take by themselves; those of
  // updates are so many times what they were.
  void correct(const std::vector<MeasuredKernel>& kernels, double updates);
  // Those that were measured by this profile.
  std::vector<MeasuredKernel> measured() const;
  // Those that a training graph asks for in the tasks of one of its strategies.
  std::vector<MeasuredKernel> used_by(const TrainingGraph& training, const TaskGraph& tasks);

  size_t kernels() const { return prices_.size(); }
  bool knows(const std::string& key) const { return prices_.contains(key); }
  // Time spent measuring.
  Seconds spent() const { return Seconds(static_cast<double>(spent_) * 1e-9); }
  // What other programs took of the host meanwhile.
  const OtherLoad& others() const { return others_; }

 private:
  // Calls visit(task, update op, elements, whether it is the first of the task) for each weight of
  // each task that updates weights.
  template <typename Visit>
  static void for_updates(const TrainingGraph& training, const TaskGraph& tasks,
                          const TaskKernels& kernels, Visit&& visit);
  // Calls visit(task, variant, elements) for each task that compresses or gets back.
  template <typename Visit>
  static void for_compressions(const TrainingGraph& training, const TaskGraph& tasks,
                               Visit&& visit);
  // On the line through the prices of the sizes on both sides; `at(size)` has one of those.
  template <size_t kSizes, typename At>
  static Nanoseconds between(const std::array<int64_t, kSizes>& sizes, int64_t elements,
                             const At& at);
  const KernelPrice& known_or(const std::string& key, const std::function<KernelPrice()>& measure);
  const KernelPrice& price(const TaskKernels& kernels, const TaskGraph& tasks,
                           const TrainingGraph& training, TaskId id);

  const int threads_, devices_;
  const std::function<Runtime&()> runtime_;
  std::map<std::string, KernelPrice> prices_;
  std::vector<std::string> measured_;
  std::map<TaskKernels::Origin, const KernelPrice*> pieces_;
  bool prices_updates_ = true, prices_compression_ = true;
  Nanoseconds spent_ = 0;
  OtherLoad others_;
};

}  // namespace windlass
