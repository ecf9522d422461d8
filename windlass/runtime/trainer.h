// A training run on one device: weights, data, steps, evaluation, checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "windlass/data/dataset.h"
#include "windlass/model/model.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/schedule.h"

namespace windlass {

struct TrainerOptions {
  ExecutorOptions executor = {};
  UpdateHyperparameters hyperparameters = {};  // but for the learning rate
  LearningRate rate = {};
  double clip_norm = 0;
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

class Trainer {
 public:
  // `network` and its weights as they were loaded, `training` and `step` (simulated with this
  // host's prices, and fitting) as planned. All must outlive the trainer. Throws Error{Input} for
  // data or weights that do not fit the model, Error{OutOfMemory} and Error{Unsupported} as
  // Executor does.
  Trainer(const Model& model, const TrainingGraph& training, const SimulatedStep& step,
          const Machine& machine, const TrainerOptions& options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Runs the next step. Throws Error{Runtime} if the loss is not a number: the weights of the last
  // checkpoint are the last good ones.
  TrainerStep step();
  int64_t steps_done() const;

  // Mean loss over the first `batches` of the part of the data that is kept for it, by forward
  // passes alone, in evaluation mode (no dropout, running statistics), one micro-batch after the
  // other. Changes nothing.
  double evaluate(int64_t batches);

  void save_checkpoint(const std::string& path);
  void load_checkpoint(const std::string& path);
  void save_weights(const std::string& path);

  Executor& executor();
  std::string describe_data() const;
  // How the weights began: "model.onnx", "random", ...
  std::string describe_weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace windlass
