// The executor: runs a task graph with real kernels and real copies, inside hard memory limits.
//
// Each lane of the graph is a thread. A task starts when its predecessors have ended, it is next on
// its lane, and its memory is granted (memory_order.h). Tensors of a device lie in the device's
// arena, from which libtorch allocates on behalf of the device's thread; what leaves the device
// lies in the host's arena. Buffers are given back when the task graph says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/reference/update.h"
#include "windlass/machine/machine.h"
#include "windlass/run/training.h"
#include "windlass/runtime/memory/arena.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

struct StepRequest {
  int64_t step = 1;  // from 1
  UpdateHyperparameters hyperparameters = {};
  // Writes the piece of an input or label that a micro-batch reads.
  std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)> load = {};
  // Of load_mean_counts, which whoever has several micro-batches must ask.
  std::vector<double> mean_counts = {};
};

class Executor {
 public:
  // The step, as it was lowered, priced and simulated for a machine. All must outlive the executor.
  // Persistent memory is taken at once, filled with zeros. Throws Error{Unsupported} for graphs
  // that cannot be run, Error{OutOfMemory} if a limit is too small, before anything runs.
  Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
           const SimResult& simulated, const Machine& machine, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Everything persistent; a tensor with copies in two memories comes twice.
  std::vector<PersistentTensor> persistent();

  // Runs one step. An error of any thread ends the step and is thrown here, with the task's name;
  // after that no step can be run.
  StepOutcome run(const StepRequest& request);

  // The loss of the step that ran last, or was running when an error ended it: the mean over the
  // micro-batches that got as far.
  double last_loss() const;

  // Gradient buffers as they are when the optimizer reads them, for tests: called during run(), one
  // at a time, with the weight's tensor and its gradient.
  void watch_gradients(std::function<void(TensorId, std::span<const std::byte>)> watch);

  // Where the device's tensors lie.
  Arena& device_arena();
  // Bytes counted now, by memory.
  std::vector<int64_t> live_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace windlass
