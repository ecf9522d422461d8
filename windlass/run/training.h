// What a training run is told, what it says of its steps, and the run itself as those see it who
// cannot run kernels: runtime/ carries it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/data/dataset.h"
#include "windlass/graph/graph.h"
#include "windlass/graph/reference/update.h"
#include "windlass/plan/step_row.h"
#include "windlass/run/ranks.h"
#include "windlass/run/schedule.h"
#include "windlass/sim/simulate.h"
#include "windlass/sim/step_record.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// Who watches a run. Times are in seconds; 0: never.
struct WatchOptions {
  // A task is late when it takes longer than so many times its prediction and than so long.
  double late_factor = 20;
  double late_after = 30;
  // When nothing has started or ended for so long, and no task under way was predicted to take a
  // good part of it, the run ends with Error{Runtime}.
  double give_up_after = 600;
  // How long threads may take to come back after that.
  double grace = 5;
  // Told once of each late task: what and where it is, how late, what waits for it.
  std::function<void(const std::string& message)> late = {};
  // Called if threads do not come back: they cannot be joined, and may go on at any time. Should
  // end the process. If it is empty or returns, they are left alone, and the step throws; what the
  // run refers to must then live as long as the process.
  std::function<void(const Error& error)> stuck = {};
};

struct ExecutorOptions {
  int threads = 1;    // that the kernels of a device use
  uint64_t seed = 0;  // of dropout and of rounding
  // By tensor of the network: the axis of the samples (BatchAxes::axis), so that a micro-batch
  // draws what the batch would. Empty: the first one.
  std::vector<int32_t> sample_axes = {};
  // Copies are no faster than the machine's links, unless the device copies itself: then they are
  // as fast as its threads copy. Devices that share cores have their share of one at any time.
  bool pace = true;
  // Memory notices misuse (runtime/memory/guarded_blocks.h): slower, the same results.
  bool paranoid = false;
  WatchOptions watch = {};
  // The processes of the run; null: this one is alone. Must outlive the run.
  Ranks* ranks = nullptr;
  // Sums of whole processes are left to the library that carries their messages, where it has its
  // own: they are added up in another order, and bits are not those of one process.
  bool library_sums = false;
  // For tests: called by the thread of each task (part -1) or part of it before it runs, as a part
  // of it; may wait or throw.
  std::function<void(int32_t task, int32_t part)> delay = {};
};

struct StepOutcome : StepRecord {
  double loss = 0;           // mean over the micro-batches
  double gradient_norm = 0;  // before clipping; 0 if nothing is clipped
};

// Who gets what is read of tensors, if it is not one rank: all; or, of each tensor, the rank that
// has most of it, so that all have about as much to do.
inline constexpr int32_t kReadByAll = -1, kReadShared = -2;

// What lives from step to step: a weight, a constant, a running statistic, or optimizer state,
// whole, however it is cut and copied over memories. The state of a weight is its master copy, if
// it has one, then the optimizer's tensors. Good as long as the run that it is of; not during a
// step.
// Of several processes all must read the same tensors in the same order.
struct PersistentTensor {
  BufferKind kind = BufferKind::Weight;  // or OptimizerState
  TensorId tensor;                       // of optimizer state: the weight
  int64_t bytes = 0;                     // of all of it
  // Of a constant that has samples, where micro-batches have two sizes: one with its size; -1: a
  // larger one.
  int32_t micro_batch = -1;
  // The rank that gets what is read, or all. Others may hand read() nothing to fill.
  int32_t reader = kReadByAll;
  // Where all of it lies dense in the memory of a device; empty if it does not.
  std::span<std::byte> on_device = {};
  std::function<void(std::span<std::byte>)> read = {};
  // Into all memories that have a part of it.
  std::function<void(std::span<const std::byte>)> write = {};

  std::vector<std::byte> values() const {
    std::vector<std::byte> all(static_cast<size_t>(bytes));
    read(all);
    return all;
  }
};

// Steps that overlap.
struct OverlapOptions {
  // As it was made of the run's step; null: each step by itself. Must outlive the run. Not for
  // several processes.
  const StepRow* row = nullptr;
  // Where a row ends before its time, so that everything has ended after that step. Empty: nowhere.
  std::function<bool(int64_t step)> barrier_after = {};
};

struct TrainerOptions {
  ExecutorOptions executor = {};
  OverlapOptions overlap = {};
  UpdateHyperparameters hyperparameters = {};  // but for the learning rate
  LearningRate rate = {};
  uint64_t seed = 0;
  bool shuffle = true;
  std::string data = "synthetic";
  DatasetOptions data_options = {};
  std::string weights = {};  // a safetensors file to start from, instead of the model's own values
};

struct TrainerStep {
  int64_t step = 0;
  double learning_rate = 0;
  StepOutcome outcome;
};

// A run that goes on step by step.
class Training {
 public:
  virtual ~Training() = default;

  // Runs the next step. Throws Error{Runtime} if the loss is not a number: the weights of the last
  // checkpoint are the last good ones.
  virtual TrainerStep step() = 0;
  virtual int64_t steps_done() const = 0;
  // Whether later steps of a row are under way: only step() may be called until there is none.
  virtual bool in_row() const = 0;

  // Mean loss over the first `batches` of the part of the data that is kept for it, by forward
  // passes alone, in evaluation mode (no dropout, running statistics), inside the limits of the
  // devices if evaluation_note() does not say otherwise. Changes nothing.
  virtual double evaluate(int64_t batches) = 0;
  // Why the last evaluation was not on the devices of the plan, inside their limits; empty if it
  // was.
  virtual std::string evaluation_note() const = 0;

  virtual void save_checkpoint(const std::string& path) = 0;
  virtual void load_checkpoint(const std::string& path) = 0;
  virtual void save_weights(const std::string& path) = 0;

  // Of the data (sizes and some samples) and of the weights that the run began with: ranks that
  // train together must have the same.
  struct Fingerprints {
    uint64_t data = 0, weights = 0;
  };
  virtual Fingerprints fingerprints() const = 0;

  virtual std::string describe_data() const = 0;
  // How the weights began: "model.onnx", "random", ...
  virtual std::string describe_weights() const = 0;
};

}  // namespace windlass
