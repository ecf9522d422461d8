// Evaluation on the devices of a plan: the forward pass of its step, in the memory of the executor
// that trains, inside the same limits and over the same links.
#pragma once

#include <memory>
#include <vector>

#include "windlass/runtime/evaluation_tasks.h"
#include "windlass/runtime/executor.h"

namespace windlass {

class DeviceEvaluation {
 public:
  // All must outlive it. Throws Error{Unsupported} if the step's forward pass cannot be run by
  // itself.
  DeviceEvaluation(const TrainingGraph& training, const SimulatedStep& step, const Machine& machine,
                   const ExecutorOptions& options, const Executor& executor);

  // The losses of the micro-batches of one step: their mean is the loss; of packs of layers, whose
  // micro-batches are parts of the batch, their sum is. No step may run at the same time. After an
  // error everything is as it was, and nothing more can be run.
  std::vector<double> run(const StepRequest& request);

  // Bytes by memory of the step's task graph, of the last run.
  const std::vector<int64_t>& peaks() const { return peaks_; }
  const SimulatedStep& step() const { return step_; }

 private:
  const TrainingGraph training_;
  const SimulatedStep step_;
  Executor executor_;
  std::vector<int64_t> peaks_;
};

}  // namespace windlass
