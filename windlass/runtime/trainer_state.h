// The state of a training run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "windlass/data/sampler.h"
#include "windlass/graph/batch.h"
#include "windlass/model/initialise.h"
#include "windlass/model/safetensors.h"
#include "windlass/run/checkpoint.h"
#include "windlass/runtime/batches.h"
#include "windlass/runtime/device_evaluation.h"
#include "windlass/runtime/trainer.h"

namespace windlass {

ExecutorOptions executor_options(const TrainerOptions& wanted, const BatchAxes& batch);

struct Trainer::State {
  State(const Model& given, const TrainingGraph& graph, const SimulatedStep& step,
        const Machine& host, const TrainerOptions& wanted);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void fill_weights();
  void fill(const PersistentTensor& tensor);
  bool fill(const PersistentTensor& tensor, DType as, std::span<std::byte> out);
  std::optional<WeightLocation> location_of(TensorId id) const;
  // Samples of the step that begins at `position`, micro-batch by micro-batch.
  std::vector<int64_t> samples_at(SamplerPosition position) const;

  // The samples of a micro-batch among those of batches one behind the other.
  Range samples_in(int64_t micro_batch) const;

  // Of so many micro-batches, whose data `load` writes. Empty if the batch cannot be cut: the loss
  // of several batches is then the mean of theirs.
  using Load = std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>;
  std::vector<double> mean_counts(int64_t count, const Load& load);
  // The mean loss of so many micro-batches: on the plan's devices, or by the forward pass alone.
  double evaluate(int64_t count, const Load& load);
  double evaluate_on_devices(int64_t count, const Load& load);
  // Throws Error{Runtime} saying where the loss of a step that has failed comes from.
  [[noreturn]] void explain_loss(const StepRequest& request, const Executor& failed);

  // The request of a step whose data begins there.
  StepRequest request_at(int64_t step, SamplerPosition from);
  // The steps up to the next barrier, as far as a row goes, and who runs them.
  void choose_row();
  // For rows of so many steps, or of as many fewer as fit.
  Executor& executor_for(int32_t steps);

  const Model& model;
  const TrainingGraph& training;
  const SimulatedStep& planned;
  const Machine& machine;
  const TrainerOptions options;
  const BatchAxes batch;
  const std::vector<BatchSlot> slots;
  const std::unique_ptr<Executor> own_executor;
  Executor& executor;
  const int64_t micro_batches;
  const int64_t data_parts;  // that the training graph is of one of
  std::unique_ptr<Dataset> data;
  std::unique_ptr<BatchFiller> filler;
  std::unique_ptr<Sampler> sampler;
  std::map<TensorId, InitialValue> initial;
  std::map<std::string, StoredTensor> given_weights;
  RunPosition position;
  std::string weights_from;
  uint64_t weights_fingerprint = 0;              // if there are several processes
  std::unique_ptr<DeviceEvaluation> on_devices;  // made by the first evaluation
  std::string evaluation_note;                   // why there is none

  // Shorter rows than the executor's own, in its memory: up to a barrier. Made when they are
  // needed.
  struct ShorterRow {
    StepRow row;
    std::unique_ptr<Executor> executor;
  };
  std::map<int32_t, ShorterRow> shorter;
  Executor* running = nullptr;           // the row that is under way; null: none
  std::vector<StepRequest> requests;     // of its steps
  std::vector<SamplerPosition> follows;  // by step of it: where the data of the next one begins
  size_t next = 0;                       // the step of it that ends next
  // Of buffers that steps write: counts of a step that follow from one are not known before the
  // step before has ended.
  bool counts_follow = false;
  std::set<TensorId> written;  // by tasks of a step
};

}  // namespace windlass
