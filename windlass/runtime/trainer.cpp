#include "windlass/runtime/trainer.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/graph/even_parts.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/model/convert.h"
#include "windlass/model/safetensors.h"
#include "windlass/model/weights.h"
#include "windlass/plan/plan.h"
#include "windlass/runtime/evaluation.h"
#include "windlass/runtime/load_counts.h"
#include "windlass/runtime/trainer_state.h"

namespace windlass {

ExecutorOptions executor_options(const TrainerOptions& wanted, const BatchAxes& batch) {
  ExecutorOptions options = wanted.executor;
  options.seed = wanted.seed;
  options.sample_axes = batch.axis;
  return options;
}

namespace {

std::unique_ptr<Executor> make_executor(const TrainingGraph& graph, const SimulatedStep& step,
                                        const Machine& host, const TrainerOptions& wanted,
                                        const BatchAxes& batch) {
  const ExecutorOptions options = executor_options(wanted, batch);
  if (wanted.overlap.row != nullptr)
    return std::make_unique<Executor>(graph, *wanted.overlap.row, host, options);
  return std::make_unique<Executor>(graph, step.tasks, step.times, step.result, host, options);
}

}  // namespace

Trainer::State::State(const Model& given, const TrainingGraph& graph, const SimulatedStep& step,
                      const Machine& host, const TrainerOptions& wanted)
    : model(given),
      training(graph),
      planned(step),
      machine(host),
      options(wanted),
      batch(find_batch(given.graph)),
      slots(batch_slots(given.graph, batch)),
      own_executor(make_executor(graph, step, host, options, batch)),
      executor(*own_executor),
      micro_batches(executor.micro_batches()),
      data_parts(step.tasks.micro_batches.empty() ? micro_batches : 1) {
  data = open_batches(options.data, model.graph, slots, options.data_options);
  if (data->size() < 1) fail_input("{}: has no samples", options.data);
  filler = std::make_unique<BatchFiller>(*data, model.graph, slots);
  sampler = std::make_unique<Sampler>(data->size(), options.seed, options.shuffle);
  position.seed = options.seed;
  position.model = fingerprint(model.graph);
  position.micro_batches = micro_batches;
  initial = initial_values(model.graph);
  if (!options.weights.empty())
    for (const StoredTensor& tensor : read_safetensors(options.weights).tensors)
      given_weights[tensor.name] = tensor;
  for (const Use& use : step.tasks.uses)
    if (use.write) written.insert(step.tasks[use.buffer].tensor);
  fill_weights();
}

// Steps of a row read the data.
Trainer::State::~State() {
  if (running != nullptr) running->cancel();
}

void Trainer::State::fill_weights() {
  size_t from_file = 0, made = 0;
  for (const PersistentTensor& tensor : executor.persistent()) {
    const TensorRole role = training.graph[tensor.tensor].role;
    if (tensor.kind == BufferKind::Weight &&
        (role == TensorRole::Weight || role == TensorRole::Buffer))
      ++(location_of(tensor.tensor) ? from_file : made);
    fill(tensor);
  }
  const std::string source = options.weights.empty() ? "the model" : options.weights;
  if (from_file > 0 && made > 0)
    weights_from = fmt::format("{} tensors of {}, {} drawn", from_file, source, made);
  else
    weights_from = from_file > 0 ? source : "drawn as PyTorch does";
}

std::optional<WeightLocation> Trainer::State::location_of(TensorId id) const {
  if (!options.weights.empty()) {
    const auto found = given_weights.find(training.graph[id].name);
    if (found == given_weights.end())
      fail_input("{}: has no tensor \"{}\"", options.weights, training.graph[id].name);
    const TensorType &stored = found->second.type, &meant = training.graph[id].type;
    if (stored.shape != meant.shape || is_float(stored.dtype) != is_float(meant.dtype))
      fail_input("{}: tensor \"{}\" is {}, the model has {}", options.weights,
                 training.graph[id].name, format_type(stored), format_type(meant));
    return found->second.location;
  }
  const auto found = model.weights.find(id);
  if (found == model.weights.end()) return std::nullopt;
  return found->second;
}

// Weights, statistics and constants; of optimizer state the master copies, the rest stays zero.
void Trainer::State::fill(const PersistentTensor& tensor) {
  const Graph& graph = training.of(tensor.micro_batch).graph;
  const Tensor& meant = graph[tensor.tensor];
  const bool state = tensor.kind == BufferKind::OptimizerState;
  if (state) {
    const auto op = std::ranges::find_if(graph.ops, [&](const Op& o) {
      return o.pass == Pass::Update && o.inputs[0] == tensor.tensor;
    });
    ensure(op != graph.ops.end(), "optimizer state of a weight that is not updated");
    if (op->inputs.size() < 3 || !op->inputs[2].valid()) return;  // no master
  }
  const DType as = state ? DType::F32 : meant.type.dtype;
  const auto size = static_cast<size_t>(element_count(meant.type.shape) * element_bytes(as));
  std::vector<std::byte> whole(static_cast<size_t>(tensor.bytes));
  if (!fill(tensor, as, std::span(whole).first(size))) return;
  if (options.executor.ranks != nullptr)
    weights_fingerprint = weights_fingerprint * 31 + hash_bytes(whole);
  tensor.write(whole);
}

// False if it stays zero.
bool Trainer::State::fill(const PersistentTensor& tensor, DType as, std::span<std::byte> out) {
  const Graph& graph = training.of(tensor.micro_batch).graph;
  const Tensor& meant = graph[tensor.tensor];
  if (tensor.tensor == training.loss_gradient) {
    // The loss of a step is the mean over its micro-batches.
    const float one = 1.0F / static_cast<float>(data_parts);
    convert_values(std::as_bytes(std::span(&one, 1)), DType::F32, out, as);
    return true;
  }
  if (meant.constant >= 0) {
    const std::vector<double>& values = graph.constants[static_cast<size_t>(meant.constant)].values;
    store_values(values, as, out);
    return true;
  }
  if (const std::optional<WeightLocation> location = location_of(tensor.tensor)) {
    read_weight(*location, as, out);
    return true;
  }
  const auto found = initial.find(tensor.tensor);
  if (found == initial.end()) return false;
  std::vector<float> values(static_cast<size_t>(element_count(meant.type.shape)));
  fill_initial(found->second, options.seed, tensor.tensor, values);
  convert_values(std::as_bytes(std::span(values)), DType::F32, out, as);
  return true;
}

std::vector<int64_t> Trainer::State::samples_at(SamplerPosition at) const {
  std::vector<int64_t> samples;
  const int64_t count = std::max<int64_t>(1, batch.samples);
  for (int64_t i = 0; i < count; ++i) samples.push_back(sampler->at(sampler->after(at, i)));
  return samples;
}

Range Trainer::State::samples_in(int64_t micro_batch) const {
  const int64_t all = std::max<int64_t>(1, batch.samples);
  const Range own = part_of(all, data_parts, micro_batch % data_parts);
  const int64_t before = micro_batch / data_parts * all;
  return {before + own.begin, before + own.end};
}

std::vector<double> Trainer::State::mean_counts(int64_t count, const Load& load) {
  if (count > 1 && !batch.obstacle.empty()) return {};
  const std::vector<PersistentTensor> resting = executor.persistent();
  return load_mean_counts(graphs_of(training), batch, count,
                          [&](TensorId tensor, int32_t micro_batch, std::span<std::byte> out) {
                            if (training.graph[tensor].role != TensorRole::Buffer)
                              return load(tensor, micro_batch, out);
                            const auto found =
                                std::ranges::find(resting, tensor, &PersistentTensor::tensor);
                            ensure(found != resting.end(), "a buffer is nowhere");
                            counts_follow |= written.contains(tensor);
                            found->read(out);
                          });
}

Trainer::Trainer(const Model& model, const TrainingGraph& training, const SimulatedStep& step,
                 const Machine& machine, const TrainerOptions& options)
    : state_(std::make_unique<State>(model, training, step, machine, options)) {}

Trainer::~Trainer() = default;

double Trainer::evaluate(int64_t batches) {
  State& state = *state_;
  ensure(!in_row(), "evaluation beside steps of a row");
  DatasetOptions part = state.options.data_options;
  part.part = DataPart::Eval;
  const auto data = open_batches(state.options.data, state.model.graph, state.slots, part);
  const BatchFiller filler(*data, state.model.graph, state.slots);
  const int64_t each = state.samples_in(0).size();
  int64_t count = std::min(batches * state.data_parts, data->size() / each);
  // Of unequal micro-batches as many as make whole batches.
  if (state.training.unequal)
    count = std::min(batches, data->size() / state.batch.samples) * state.data_parts;
  if (count < 1)
    fail_input("{}: {} samples are kept for evaluation, fewer than a {} of {}", state.options.data,
               data->size(), state.training.unequal ? "batch" : "micro-batch",
               state.training.unequal ? state.batch.samples : each);
  return state.evaluate(count, [&](TensorId tensor, int32_t b, std::span<std::byte> out) {
    const Range range = state.samples_in(b);
    std::vector<int64_t> samples;
    for (int64_t i = range.begin; i < range.end; ++i) samples.push_back(i);
    const auto in_turn = static_cast<int32_t>(b % state.data_parts);
    filler.fill(tensor, state.training.of(in_turn).graph[tensor].type, samples, out);
  });
}

std::string Trainer::evaluation_note() const { return state_->evaluation_note; }

double Trainer::State::evaluate(int64_t count, const Load& load) {
  if (evaluation_note.empty()) try {
      if (!on_devices)
        on_devices = std::make_unique<DeviceEvaluation>(training, planned, machine,
                                                        executor_options(options, batch), executor);
      return evaluate_on_devices(count, load);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Unsupported && error.kind() != ErrorKind::OutOfMemory) throw;
      evaluation_note =
          fmt::format("evaluation runs op by op, {}: {}",
                      executor.device_arena() != nullptr
                          ? "not by the tasks of the plan"
                          : "in free host memory, outside of the limits of the devices",
                      error.message());
      on_devices.reset();
    }
  const std::vector<double> counts = mean_counts(count, load);
  double total = 0;
  for (int32_t b = 0; b < count; ++b)
    total += evaluate_loss(
        training, executor,
        [&](TensorId tensor, std::span<std::byte> out) { load(tensor, b, out); }, counts,
        static_cast<int32_t>(b % data_parts));
  return total / static_cast<double>(count);
}

// As many micro-batches at a time as a step has. Those that are missing in the last one are made
// up, and do not count.
double Trainer::State::evaluate_on_devices(int64_t count, const Load& load) {
  StepRequest request;
  request.step = 0;
  request.evaluates = true;
  request.mean_counts = mean_counts(count, load);
  double total = 0;
  for (int64_t first = 0; first < count; first += data_parts) {
    request.load = [&](TensorId tensor, int32_t micro_batch, std::span<std::byte> out) {
      load(tensor, static_cast<int32_t>(std::min(first + std::max(0, micro_batch), count - 1)),
           out);
    };
    // Of a batch that cannot be cut each has its own.
    if (request.mean_counts.empty() || !batch.obstacle.empty())
      request.mean_counts = mean_counts(1, request.load);
    std::vector<double> losses = on_devices->run(request);
    if (data_parts > 1) losses.resize(static_cast<size_t>(std::min(data_parts, count - first)));
    for (double loss : losses) total += loss;
  }
  return total / static_cast<double>(count);
}

std::vector<double> Trainer::mean_counts(
    int64_t count,
    const std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>& load) {
  return state_->mean_counts(count, load);
}

Executor& Trainer::executor() { return state_->executor; }
std::string Trainer::describe_data() const { return state_->data->describe(); }
std::string Trainer::describe_weights() const { return state_->weights_from; }

}  // namespace windlass
