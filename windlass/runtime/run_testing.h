// What the tests of runs share: a network under a strategy on one device of this host, ready to
// run.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/cost/cost_model.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/graph/reference/training_step.h"
#include "windlass/machine/local.h"
#include "windlass/plan/step.h"
#include "windlass/run/profile.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/linked_runtime.h"
#include "windlass/runtime/load_counts.h"
#include "windlass/strategy/baselines.h"

namespace windlass::testing_runs {

// With one core, the device copies itself.
inline Machine host(std::optional<Bytes> memory = std::nullopt, int64_t cores = 2) {
  // Made up, so that nothing is measured: a link that is slow enough for copies to overlap.
  HostFigures figures;
  figures.cores = cores;
  figures.memory = Bytes(int64_t{16} << 30);
  figures.peak_one = figures.peak_all = FlopsPerSecond(1e11);
  figures.triad_one = figures.triad_all = BytesPerSecond(1e10);
  figures.copy_one = figures.copy_all = BytesPerSecond(2e9);
  return local_machine({.devices = 1, .memory = memory, .host = figures});
}

// Kernels with one thread, measured once for all tests of a program.
inline KernelProfile& profile() {
  static KernelProfile shared(1, linked_runtime);
  return shared;
}

inline void reprice(const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times) {
  profile().reprice(training, tasks, times);
}

// A step of a network, and data drawn from a seed.
class TestRun {
 public:
  TestRun(const Graph& network, const std::string& strategy,
          const TrainingOptions& options = {.optimizer = OptimizerKind::Adam},
          std::optional<Bytes> memory = std::nullopt, int64_t cores = 2)
      : machine_(host(memory, cores)),
        prepared_(prepare_step(network, parse_baseline(strategy), machine_, options)),
        batch_(find_batch(network)),
        cost_(analytic_cost_model()) {}

  Strategy& strategy() { return prepared_.strategy; }
  const TrainingGraph& training() const { return prepared_.training; }
  const SimulatedStep& predicted() const { return step_; }
  // Of weights and inputs, by name; others are drawn.
  std::map<std::string, Array> values;
  Executor& executor() { return *executor_; }

  // After the last change of the strategy.
  void begin(uint64_t seed = 3) {
    step_ = simulate_step(prepared_.training, prepared_.strategy, machine_, *cost_, {}, reprice);
    executor_ = std::make_unique<Executor>(
        prepared_.training, step_.tasks, step_.times, step_.result, machine_,
        ExecutorOptions{.threads = 1, .seed = seed, .sample_axes = batch_.axis, .paranoid = true});
    seed_ = seed;
    const Graph& graph = prepared_.training.graph;
    for (const PersistentTensor& tensor : executor_->persistent()) {
      if (tensor.kind != BufferKind::Weight) continue;
      const Tensor& meant = graph[tensor.tensor];
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
      if (const Array* given = find_given(tensor.tensor))
        store(given->values, meant.type, bytes);
      else if (tensor.tensor == prepared_.training.loss_gradient)
        fill(bytes,
             [&](size_t) { return 1.0F / static_cast<float>(prepared_.strategy.micro_batches); });
      else if (meant.constant >= 0)
        store(prepared_.training.of(tensor.micro_batch)
                  .graph.constants[static_cast<size_t>(meant.constant)]
                  .values,
              meant.type, bytes);
      else
        fill(bytes, [&](size_t i) {
          return static_cast<float>(
              0.2 * (random_uniform(1, static_cast<uint64_t>(tensor.tensor.value), i) - 0.5) +
              (meant.type.shape.size() == 1 ? 0.5 : 0));
        });
      tensor.write(bytes);
    }
  }

  StepOutcome step() {
    ++steps_;
    StepRequest request;
    request.step = steps_;
    request.hyperparameters.learning_rate = 1e-2;
    request.load = [&](TensorId tensor, int32_t micro_batch, std::span<std::byte> out) {
      // A micro-batch is its part of the batch.
      const TensorType& type = prepared_.training.of(micro_batch).graph[tensor].type;
      const auto count = static_cast<uint64_t>(element_count(type.shape));
      uint64_t first = count * static_cast<uint64_t>(std::max(0, micro_batch));
      if (const auto& unequal = prepared_.training.unequal; unequal && micro_batch > 0) {
        const Range samples = samples_of(*unequal, micro_batch);
        first =
            count / static_cast<uint64_t>(samples.size()) * static_cast<uint64_t>(samples.begin);
      }
      if (const Array* given = find_given(tensor)) {
        const std::span<const double> all(given->values);
        return store(all.size() == count ? all : all.subspan(first, count), type, out);
      }
      const uint64_t stream =
          static_cast<uint64_t>(tensor.value) * 1000 + static_cast<uint64_t>(steps_);
      if (is_float(type.dtype))
        fill(out, [&](size_t i) {
          return static_cast<float>(random_uniform(2, stream, first + i) - 0.5);
        });
      else
        for (uint64_t i = 0; i < count; ++i) {
          const int64_t value =
              static_cast<int64_t>(random_bits(2, stream, first + i) % 8);  // fewest classes here
          std::memcpy(out.data() + i * static_cast<uint64_t>(element_bytes(type.dtype)), &value,
                      static_cast<size_t>(element_bytes(type.dtype)));
        }
    };
    request.mean_counts = load_mean_counts(graphs_of(prepared_.training), batch_,
                                           prepared_.strategy.micro_batches, request.load);
    return executor_->run(request);
  }

  // Gradients of the next step by the interpreter, of the weights and inputs in `values`, which
  // must be all there are; not in micro-batches.
  std::map<std::string, Array> expected_gradients() const {
    const Graph& graph = prepared_.training.graph;
    TensorValues tensors(graph.tensors.size());
    for (size_t t = 0; t < tensors.size(); ++t)
      if (const Array* given = find_given(TensorId(t))) tensors[t] = *given;
    tensors[prepared_.training.loss_gradient.index()] =
        Array(graph[prepared_.training.loss_gradient].type.shape, 1);
    reference_step(prepared_.training, tensors, [&](OpId op) -> RandomState {
      return {seed_, random_bits(seed_, static_cast<uint64_t>(op.index()),
                                 static_cast<uint64_t>(steps_ + 1))};
    });
    std::map<std::string, Array> found;
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].trainable && prepared_.training.gradient_of[t].valid())
        found[graph.tensors[t].name] = tensors[prepared_.training.gradient_of[t].index()];
    return found;
  }

  // Gradients of one step, by name of the weight.
  std::map<std::string, std::vector<std::byte>> gradients() {
    std::map<std::string, std::vector<std::byte>> found;
    executor_->watch_gradients([&](const GradientPiece& piece) {
      const Tensor& tensor = prepared_.training.graph[piece.weight];
      collect(piece, tensor.type.shape, found[tensor.name]);
    });
    step();
    executor_->watch_gradients({});
    return found;
  }

 private:
  template <typename Value>
  static void fill(std::span<std::byte> out, Value value) {
    for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
      const float number = value(i);
      std::memcpy(out.data() + i * sizeof(float), &number, sizeof(float));
    }
  }
  const Array* find_given(TensorId tensor) const {
    const auto found = values.find(prepared_.training.graph[tensor].name);
    return found == values.end() ? nullptr : &found->second;
  }
  static void store(std::span<const double> values, const TensorType& type,
                    std::span<std::byte> out) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_float(type.dtype)) {
        const auto number = static_cast<float>(values[i]);
        std::memcpy(out.data() + i * sizeof(float), &number, sizeof(float));
      } else {
        const auto number = static_cast<int64_t>(values[i]);
        const auto each = static_cast<size_t>(element_bytes(type.dtype));
        std::memcpy(out.data() + i * each, &number, each);
      }
    }
  }

  Machine machine_;
  PreparedStep prepared_;
  const BatchAxes batch_;  // of the network that is not cut
  std::unique_ptr<CostModel> cost_;
  SimulatedStep step_;
  std::unique_ptr<Executor> executor_;
  int64_t steps_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace windlass::testing_runs
