#include "windlass/runtime/device_evaluation.h"

#include "windlass/base/error.h"

namespace windlass {
namespace {

const TrainingGraph& able(const TrainingGraph& training, const Executor& executor) {
  if (executor.carries())
    fail_unsupported("pages that a step leaves on devices are where the next one finds them");
  return training;
}

}  // namespace

DeviceEvaluation::DeviceEvaluation(const TrainingGraph& training, const SimulatedStep& step,
                                   const Machine& machine, const ExecutorOptions& options,
                                   const Executor& executor)
    : training_(evaluation_graph(able(training, executor))),
      step_(evaluation_step(training, step)),
      executor_(training_, step_.tasks, step_.times, step_.result, machine, options, &executor) {}

std::vector<double> DeviceEvaluation::run(const StepRequest& request) {
  try {
    peaks_ = executor_.run(request).peaks;
  } catch (...) {
    executor_.give_back();
    throw;
  }
  return executor_.micro_batch_losses();
}

}  // namespace windlass
