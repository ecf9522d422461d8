// The executor: runs a task graph with real kernels and real copies, inside hard memory limits.
//
// Devices (device.h) have memory and lanes: each a thread that runs its kernels, and one for each
// lane that moves data or updates on a host. A job (jobs.h) starts when those before it have ended
// and the memories it takes bytes of let it in (memory_gate.h). There is no lock for all: jobs have
// counters, memories and threads a lock each. Tensors of a device lie in the device's arena, from
// which libtorch allocates on behalf of the device's thread; what is on the host lies in the host's
// arena, once for all devices. Buffers are given back when the task graph says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"
#include "windlass/graph/reference/update.h"
#include "windlass/machine/machine.h"
#include "windlass/plan/step_row.h"
#include "windlass/run/training.h"
#include "windlass/runtime/device.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

struct StepRequest {
  int64_t step = 1;  // from 1
  UpdateHyperparameters hyperparameters = {};
  // Writes the piece of an input or label that a micro-batch reads.
  std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)> load = {};
  // Of load_mean_counts, if needs_counts() says so.
  std::vector<double> mean_counts = {};
  bool evaluates = false;  // a loss that is no number is not an error
};

// Part of a weight's gradient.
struct GradientPiece {
  TensorId weight;
  const Region& region;  // of the weight, that a device has
  Range mine;            // of the region's elements, those that `bytes` are
  std::span<const std::byte> bytes;
};

// Puts a piece to its place in the whole gradient.
void collect(const GradientPiece& piece, const Shape& shape, std::vector<std::byte>& whole);

class Executor {
 public:
  // The step, as it was lowered, priced and simulated for a machine. All must outlive the executor.
  // Persistent memory is taken at once, filled with zeros. Throws Error{Unsupported} for graphs
  // that cannot be run, Error{OutOfMemory} if a limit is too small, before anything runs.
  // `beside`: another executor for a graph with the same buffers, in whose memory this one works
  // instead of taking its own. Only one of the two runs at a time.
  // `make_device`: what devices and hosts are made by.
  Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
           const SimResult& simulated, const Machine& machine, const ExecutorOptions& options = {},
           const Executor* beside = nullptr, const DeviceMaker& make_device = make_cpu_device);
  // For rows of steps, one beginning before the one before has ended. `beside` may be for a longer
  // row of the same steps. Not for several processes.
  Executor(const TrainingGraph& training, const StepRow& row, const Machine& machine,
           const ExecutorOptions& options = {}, const Executor* beside = nullptr,
           const DeviceMaker& make_device = make_cpu_device);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Everything persistent, each tensor once. Where there are several processes, all must read the
  // same tensors in the same order; `reader` alone gets the bytes, if it is a rank. Each writes
  // what it has of a tensor.
  std::vector<PersistentTensor> persistent(int32_t reader = kReadByAll);

  int64_t micro_batches() const;
  // Whether what rests is handed on from step to step, so that no part of a step can be left out:
  // demand paging.
  bool carries() const;
  // Whether the step is cut, and must be told what its means divide by.
  bool needs_counts() const;

  // Runs one step. An error of any thread ends the step on all devices and is thrown here, with the
  // names of the task and of its devices; after that no step can be run. So does a standstill: see
  // WatchOptions.
  StepOutcome run(const StepRequest& request);

  // Begins a row, with a request for each of its steps: nothing of it may be changed before the
  // last step has ended, and no tensor that rests be read or written.
  int32_t row_steps() const;
  void begin(std::vector<StepRequest> requests);
  // Returns when the next step of the row has ended; throws as run() does. Its time is that since
  // the step before it ended (since the beginning of the row for the first one), its tasks' times
  // are from the start of its first task on, and its peaks are those of the row so far.
  StepOutcome wait();
  // Ends a row before its time: no task is started any more. After that no step can be run.
  void cancel();

  // The task whose error ended the run; empty if it was none of a task. And its step of the row,
  // from 0; that which was waited for if it was none of a task.
  const std::string& failed_task() const;
  size_t failed_step() const;

  // The loss of the step that ended last, or whose error ended the run: the mean over the
  // micro-batches that got as far.
  double last_loss() const;
  // The same for each micro-batch, as far as it counts in that mean.
  std::vector<double> micro_batch_losses() const;
  // What a step that failed has left but for what lasts. No thread may be at a task.
  void give_back();

  // Gradients as they are when the optimizer reads them, for tests: called during run(), one at a
  // time.
  void watch_gradients(std::function<void(const GradientPiece&)> watch);

  // Where the tensors of the only device lie; null if there are several, or several processes.
  Arena* device_arena();
  // Bytes counted now, by memory of the program.
  std::vector<int64_t> live_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace windlass
