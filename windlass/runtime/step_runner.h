// Runs steps of a task graph on devices of this host, from given values and data. For tests.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/model/convert.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/load_counts.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::testing_runs {

inline void store_array(const Array& array, DType dtype, std::span<std::byte> out) {
  store_values(array.values, dtype, out);
}

inline std::vector<double> load_array(std::span<const std::byte> bytes, DType dtype) {
  std::vector<double> values(bytes.size() / static_cast<size_t>(element_bytes(dtype)));
  convert_values(bytes, dtype, std::as_writable_bytes(std::span(values)), DType::F64);
  return values;
}

// Where the samples are in the network that a step trains.
inline BatchAxes batch_of_network(const TrainingGraph& training) {
  Graph forward = training.graph;
  forward.ops.resize(training.forward_ops);
  return find_batch(forward);
}

// What a run ends with.
struct RunEnd {
  std::vector<double> losses;                            // by step
  std::vector<double> norms;                             // by step: before clipping
  std::map<std::string, std::vector<double>> gradients;  // of the first step
  // What lasts, after the first step and after the last one.
  struct Lasting {
    std::map<std::string, std::vector<double>> weights;  // and buffers
    std::map<std::string, std::vector<double>> states;
    std::vector<std::byte> bits;
  };
  Lasting first, last;
  std::vector<int64_t> peaks;  // by memory, of the last step
  StepOutcome outcome;         // of the last step
};

inline RunEnd::Lasting lasting_of(const Graph& graph, Executor& executor) {
  RunEnd::Lasting found;
  for (const PersistentTensor& tensor : executor.persistent()) {
    const Tensor& meant = graph[tensor.tensor];
    if (meant.role != TensorRole::Weight && meant.role != TensorRole::Buffer) continue;
    const std::vector<std::byte> bytes = tensor.values();
    found.bits.insert(found.bits.end(), bytes.begin(), bytes.end());
    if (tensor.kind == BufferKind::OptimizerState)
      found.states[meant.name] = load_array(bytes, DType::F32);
    else if (is_float(meant.type.dtype))
      found.weights[meant.name] = load_array(bytes, meant.type.dtype);
  }
  return found;
}

struct RunSettings {
  int steps = 2;
  uint64_t seed = 3;
  bool paranoid = false;
  bool pace = false;
  std::function<void(int32_t, int32_t)> delay = {};
  WatchOptions watch = {};
  Ranks* ranks = nullptr;
  bool library_sums = false;
  std::function<void(int step, Executor&)> after_step = {};
  // Steps overlap in rows like this one, as many as `steps` are; no gradients are noted.
  const StepRow* row = nullptr;
  bool other_data = false;  // of each step: numbers are larger from step to step
  DeviceMaker make_device = make_cpu_device;
};

// `start` has values and data of the first step; the others have the same data. `batch` is of the
// network that is not cut, or empty.
inline RunEnd run_steps(const TrainingGraph& training, const Machine& machine,
                        const TaskGraph& tasks, const TaskTimes& times, const SimResult& simulated,
                        const StepStart& start, const BatchAxes& batch,
                        const RunSettings& settings = {}) {
  const Graph& graph = training.graph;
  const ExecutorOptions options = {.threads = 1,
                                   .seed = settings.seed,
                                   .sample_axes = batch.axis,
                                   .pace = settings.pace,
                                   .paranoid = settings.paranoid,
                                   .watch = settings.watch,
                                   .ranks = settings.ranks,
                                   .library_sums = settings.library_sums,
                                   .delay = settings.delay};
  const auto made = settings.row != nullptr
                        ? std::make_unique<Executor>(training, *settings.row, machine, options,
                                                     nullptr, settings.make_device)
                        : std::make_unique<Executor>(training, tasks, times, simulated, machine,
                                                     options, nullptr, settings.make_device);
  Executor& executor = *made;
  const size_t first_update = training.forward_ops + training.backward_ops;
  for (const PersistentTensor& tensor : executor.persistent()) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    const Tensor& meant = graph[tensor.tensor];
    if (tensor.kind == BufferKind::OptimizerState) {
      size_t at = 0;
      for (size_t u = first_update; u < graph.ops.size(); ++u)
        if (graph.ops[u].inputs[0] == tensor.tensor)
          for (size_t k = 2; k < graph.ops[u].inputs.size(); ++k) {
            const TensorId id = graph.ops[u].inputs[k];
            if (!id.valid()) continue;
            const auto size = static_cast<size_t>(byte_size(graph[id].type).value);
            store_array(start.values[id.index()], graph[id].type.dtype,
                        std::span(bytes).subspan(at, size));
            at += size;
          }
    } else if (tensor.tensor == training.loss_gradient) {
      store_array(Array(meant.type.shape, 1.0 / start.micro_batches), meant.type.dtype, bytes);
    } else if (meant.constant >= 0) {
      const Graph& own = training.of(tensor.micro_batch).graph;
      store_array(Array(own[tensor.tensor].type.shape,
                        own.constants[static_cast<size_t>(meant.constant)].values),
                  meant.type.dtype, bytes);
    } else {
      store_array(start.values[tensor.tensor.index()], meant.type.dtype, bytes);
    }
    tensor.write(bytes);
  }
  RunEnd end;
  const auto request_of = [&](int step) {
    StepRequest request;
    request.step = step;
    request.hyperparameters = start.hyperparameters;
    request.load = [&, step](TensorId id, int32_t micro_batch, std::span<std::byte> out) {
      Array array = start.data(id, std::max(0, micro_batch));
      if (settings.other_data && is_float(graph[id].type.dtype))
        for (double& value : array.values) value *= 1 + 0.25 * step;
      store_array(array, graph[id].type.dtype, out);
    };
    request.mean_counts =
        load_mean_counts(graphs_of(training), batch, start.micro_batches, request.load);
    return request;
  };
  for (int step = 1; step <= settings.steps; ++step) {
    std::map<std::string, std::vector<std::byte>> gradients;
    if (settings.row != nullptr && (step - 1) % executor.row_steps() == 0) {
      std::vector<StepRequest> requests;
      for (int k = 0; k < executor.row_steps(); ++k) requests.push_back(request_of(step + k));
      executor.begin(std::move(requests));
    }
    if (step == 1 && settings.row == nullptr)
      executor.watch_gradients([&](const GradientPiece& piece) {
        const Tensor& tensor = graph[piece.weight];
        collect(piece, tensor.type.shape, gradients[tensor.name]);
      });
    const StepOutcome outcome =
        settings.row != nullptr ? executor.wait() : executor.run(request_of(step));
    if (settings.row == nullptr) executor.watch_gradients({});
    end.losses.push_back(outcome.loss);
    end.norms.push_back(outcome.gradient_norm);
    end.peaks = outcome.peaks;
    end.outcome = outcome;
    for (const auto& [name, bytes] : gradients) {
      const auto found = std::ranges::find(graph.tensors, name, &Tensor::name);
      const TensorId id(static_cast<size_t>(found - graph.tensors.begin()));
      for (size_t u = first_update; u < graph.ops.size(); ++u)
        if (graph.ops[u].inputs[0] == id)
          end.gradients[name] = load_array(bytes, graph[graph.ops[u].inputs[1]].type.dtype);
    }
    if (step == 1 && settings.row == nullptr) end.first = lasting_of(graph, executor);
    if (settings.after_step) settings.after_step(step, executor);
  }
  end.last = lasting_of(graph, executor);
  return end;
}

}  // namespace windlass::testing_runs
