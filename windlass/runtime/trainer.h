// A training run: weights, data, steps, evaluation, checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "windlass/model/model.h"
#include "windlass/plan/step.h"
#include "windlass/run/training.h"
#include "windlass/runtime/executor.h"

namespace windlass {

class Trainer final : public Training {
 public:
  // `network` and its weights as they were loaded, `training` and `step` (simulated with this
  // host's prices, and fitting) as planned. All must outlive the trainer. Throws Error{Input} for
  // data or weights that do not fit the model, Error{OutOfMemory} and Error{Unsupported} as
  // Executor does.
  Trainer(const Model& model, const TrainingGraph& training, const SimulatedStep& step,
          const Machine& machine, const TrainerOptions& options);
  ~Trainer() override;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  TrainerStep step() override;
  int64_t steps_done() const override;
  bool in_row() const override;
  double evaluate(int64_t batches) override;
  std::string evaluation_note() const override;
  void save_checkpoint(const std::string& path) override;
  void load_checkpoint(const std::string& path) override;
  void save_weights(const std::string& path) override;
  Fingerprints fingerprints() const override;
  std::string describe_data() const override;
  std::string describe_weights() const override;

  Executor& executor();
  // StepRequest::mean_counts of so many micro-batches, whose inputs and labels `load` writes.
  std::vector<double> mean_counts(
      int64_t count,
      const std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>& load);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace windlass
