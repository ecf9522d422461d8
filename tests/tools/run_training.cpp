// Trains models for a few steps under many strategies and writes down every number, for tests that
// compare with another program.
//
//   windlass_run_training [THREADS] < REQUESTS
//
// THREADS is what kernels use, 1 by default. A request is a line of JSON:
//
//   {"model": "net.onnx", "data": "net.safetensors", "out": "folder", "steps": 3,
//    "optimizer": "adamw", "hyperparameters": {"lr": 0.01, ...}, "loss": "mse", "batch": 4,
//    "freeze": ["scale"], "as_exported": true,
//    "strategies": ["single", "least", "half", "random:7"]}
//
// The data file has, for each input and label, a tensor of as many rows as all steps have samples.
// A strategy is a name with parameters as `windlass train --strategy` takes it; "least" is what the
// search for one device finds in the least memory, "half" in half of what keeping everything takes,
// "random:S" a random mixture of memory actions and residencies, which may have to wait for memory.
// Each is run twice, in as much memory as is predicted.
//
// A line {"begin": ...} is printed before each strategy and {"end": ...} after it, so that whoever
// reads knows what ran when the process died; {"model": "done"} ends a request. Weights as they
// begin go to OUT/initial.safetensors, gradients of each step and the last weights to
// OUT/<number of the strategy>.safetensors. Times are those of the analytic model, only workspaces
// are measured: the same strategies come out on every run.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/machine/local.h"
#include "windlass/model/safetensors.h"
#include "windlass/model/weights.h"
#include "windlass/plan/check.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/plan/step.h"
#include "windlass/run/profile.h"
#include "windlass/runtime/linked_runtime.h"
#include "windlass/runtime/trainer.h"
#include "windlass/search/search.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Bits = std::vector<std::byte>;

// With one core the device copies itself, with two a thread beside it.
Machine test_machine(int64_t cores) {
  HostFigures figures;
  figures.cores = cores;
  figures.memory = Bytes(int64_t{16} << 30);
  figures.peak_one = figures.peak_all = FlopsPerSecond(1e11);
  figures.triad_one = figures.triad_all = BytesPerSecond(1e10);
  figures.copy_one = figures.copy_all = BytesPerSecond(2e9);
  return local_machine({.devices = 1, .host = figures});
}

// What a request says, with its data in memory.
struct Request {
  Model model;
  BatchAxes batch;
  std::map<std::string, Bits> data;
  TrainingOptions training;
  UpdateHyperparameters hyperparameters;
  int64_t steps = 1;
  fs::path out;
  std::vector<std::string> strategies;
};

// A strategy for the training graph of one of its micro-batches, and the machine it is for.
struct Candidate {
  TrainingGraph training;
  Strategy strategy;
  Machine machine;
  SimulatedStep step;
};

// All that a run computes.
struct Outcome {
  std::vector<double> losses;
  std::map<std::string, std::pair<TensorType, Bits>> tensors;
  int64_t device_peak = 0, host_peak = 0;
};

std::map<std::string, Bits> read_data(const std::string& path, const Graph& graph) {
  std::map<std::string, Bits> data;
  const Safetensors file = read_safetensors(path);
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.role != TensorRole::Input && tensor.role != TensorRole::Label) continue;
    const auto found = std::ranges::find(file.tensors, tensor.name, &StoredTensor::name);
    if (found == file.tensors.end())
      fail_input("{}: has no tensor \"{}\", which the model reads", path, tensor.name);
    const int64_t bytes = element_count(found->type.shape) * element_bytes(tensor.type.dtype);
    Bits& values = data[tensor.name];
    values.resize(static_cast<size_t>(bytes));
    read_weight(found->location, tensor.type.dtype, values);
  }
  return data;
}

Request read_request(const json& line) {
  Request request;
  ModelOptions options;
  if (line.contains("loss")) options.loss = parse_loss(line["loss"].get<std::string>());
  if (line.contains("batch")) options.batch = line["batch"].get<int64_t>();
  if (line.contains("freeze")) options.freeze = line["freeze"].get<std::vector<std::string>>();
  options.as_exported = line.value("as_exported", false);
  request.out = line.at("out").get<std::string>();
  request.steps = line.at("steps");
  request.strategies = line.at("strategies").get<std::vector<std::string>>();
  const auto optimizer = optimizer_from_name(line.at("optimizer").get<std::string>());
  if (!optimizer) fail_input("optimizer {} is not known", line["optimizer"].dump());
  request.training.optimizer = *optimizer;
  const json& numbers = line.at("hyperparameters");
  UpdateHyperparameters& hyper = request.hyperparameters;
  hyper.learning_rate = numbers.value("lr", hyper.learning_rate);
  hyper.momentum = numbers.value("momentum", hyper.momentum);
  hyper.epsilon = numbers.value("epsilon", hyper.epsilon);
  hyper.weight_decay = numbers.value("weight_decay", hyper.weight_decay);
  request.training.clip_norm = numbers.value("clip", 0.0);
  request.model = load_model(line.at("model").get<std::string>(), options);
  request.batch = find_batch(request.model.graph);
  request.data = read_data(line.at("data"), request.model.graph);
  return request;
}

class Tool {
 public:
  explicit Tool(int threads) : threads_(threads), profile_(threads, linked_runtime) {}

  void serve(std::istream& lines) {
    for (std::string line; std::getline(lines, line);) {
      try {
        const Request request = read_request(json::parse(line));
        for (size_t i = 0; i < request.strategies.size(); ++i) run(request, i);
      } catch (const Error& error) {
        say({{"end", nullptr}, {"error", kind_name(error.kind())}, {"message", error.message()}});
      } catch (const std::exception& error) {
        say({{"end", nullptr}, {"error", "internal"}, {"message", error.what()}});
      }
      say({{"model", "done"}});
    }
  }

 private:
  static void say(const json& line) { std::cout << line.dump() << std::endl; }

  static const char* kind_name(ErrorKind kind) {
    switch (kind) {
      case ErrorKind::Input: return "input";
      case ErrorKind::Unsupported: return "unsupported";
      case ErrorKind::OutOfMemory: return "memory";
      case ErrorKind::Runtime: return "runtime";
      case ErrorKind::Internal: break;
    }
    return "internal";
  }

  Reprice workspaces() {
    return [this](const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times) {
      const std::vector<Nanoseconds> analytic = times.duration;
      profile_.reprice(training, tasks, times);
      times.duration = analytic;
    };
  }

  SimulatedStep simulate(const Candidate& candidate) {
    return simulate_step(candidate.training, candidate.strategy, candidate.machine, *cost_, {},
                         workspaces());
  }

  Candidate named(const Request& request, const std::string& text, int64_t cores) {
    Candidate candidate;
    candidate.machine = test_machine(cores);
    PreparedStep prepared = prepare_step(request.model.graph, parse_baseline(text),
                                         candidate.machine, request.training);
    candidate.training = std::move(prepared.training);
    candidate.strategy = std::move(prepared.strategy);
    candidate.step = simulate(candidate);
    return candidate;
  }

  Candidate searched(const Request& request, Bytes limit, int64_t cores) {
    Candidate candidate;
    candidate.machine = test_machine(cores);
    candidate.machine.devices[0].limit = limit;
    const Problem problem = {.network = request.model.graph,
                             .machine = candidate.machine,
                             .training = request.training,
                             .cost = *cost_,
                             .reprice = workspaces()};
    SearchResult found = search_one_device(problem, {.time_limit = Seconds(600), .threads = 1});
    if (found.termination == Termination::Infeasible) {
      ensure(found.least_limit.has_value(), "a search without a least limit");
      candidate.machine.devices[0].limit = *found.least_limit;
    }
    candidate.training = std::move(found.training);
    candidate.strategy = std::move(found.strategy);
    candidate.step = simulate(candidate);
    return candidate;
  }

  Candidate random(const Request& request, uint64_t seed) {
    Rng rng(seed);
    Candidate candidate;
    candidate.machine = test_machine(rng.integer(1, 2));
    const int64_t samples = std::max<int64_t>(1, request.batch.samples);
    int64_t cuts = request.batch.obstacle.empty() ? rng.integer(1, samples) : 1;
    while (samples % cuts != 0) --cuts;
    candidate.training =
        cut_training(request.model.graph, request.batch, cuts, request.training).training;
    candidate.strategy =
        cases::random_strategy(candidate.training, candidate.machine, rng,
                               {.pipeline = false, .compress = false, .in_turn = true});
    candidate.strategy.micro_batches = cuts;
    candidate.step = simulate(candidate);
    tighten(candidate, rng.uniform(0.5, 1));
    return candidate;
  }

  // Less memory than the step takes when nothing waits for any: the first limit, from `part` of
  // that on, at which it runs.
  void tighten(Candidate& candidate, double part) {
    const int64_t peak = candidate.step.result.peaks[0].bytes;
    constexpr double kStep = 0.1;
    for (; candidate.machine.devices[0].limit.value != peak; part += kStep) {
      candidate.machine.devices[0].limit =
          Bytes(std::min(peak, static_cast<int64_t>(part * static_cast<double>(peak))));
      SimulatedStep step = simulate(candidate);
      if (step.result.status != SimStatus::Done) continue;
      candidate.step = std::move(step);
      return;
    }
  }

  Candidate make(const Request& request, const std::string& name, size_t number) {
    const auto cores = static_cast<int64_t>(1 + number % 2);
    if (name == "least") return searched(request, Bytes(1), cores);
    if (name == "half") {
      const Candidate kept = named(request, "single", cores);
      return searched(request, Bytes(kept.step.result.peaks[0].bytes / 2), cores);
    }
    if (name.starts_with("random:")) return random(request, std::stoull(name.substr(7)));
    Candidate candidate = named(request, name, cores);
    tighten(candidate, 1);
    return candidate;
  }

  // The piece of an input or label that a micro-batch reads.
  static void load(const Request& request, const TrainingGraph& training, TensorId tensor,
                   int64_t step, int32_t micro_batch, int64_t cuts, std::span<std::byte> out) {
    const Graph& whole = request.model.graph;
    const Shape& shape = whole[tensor].type.shape;
    const auto cut_for = [&](int32_t m) -> const Shape& {
      return training.of(m).graph[tensor].type.shape;
    };
    const int32_t own = std::max(0, micro_batch);
    const Shape& cut = cut_for(own);
    const auto total = static_cast<size_t>(byte_size(whole[tensor].type).value);
    const Bits& rows = request.data.at(whole[tensor].name);
    const size_t each_step = rows.size() / static_cast<size_t>(request.steps);
    if (each_step < total)
      fail_input("data \"{}\": {} bytes a step, expected {}", whole[tensor].name, each_step, total);
    const std::byte* from = rows.data() + static_cast<size_t>(step - 1) * each_step;
    if (cut == shape || cuts == 1) return void(std::memcpy(out.data(), from, total));
    const auto axis = static_cast<size_t>(request.batch.axis[tensor.index()]);
    const auto width = static_cast<size_t>(element_bytes(whole[tensor].type.dtype));
    size_t outer = 1, row = width;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i < axis) outer *= static_cast<size_t>(shape[i]);
      if (i > axis) row *= static_cast<size_t>(shape[i]);
    }
    // Micro-batches may differ by a sample.
    size_t before = 0;
    for (int32_t m = 0; m < own; ++m) before += row * static_cast<size_t>(cut_for(m)[axis]);
    const size_t inner = row * static_cast<size_t>(cut[axis]), stride = total / outer;
    if (out.size() < outer * inner || before + inner > stride)
      fail_input("data \"{}\": micro-batch {} does not lie in the batch", whole[tensor].name, own);
    for (size_t i = 0; i < outer; ++i)
      std::memcpy(out.data() + i * inner, from + i * stride + before, inner);
  }

  static void add_weights(Trainer& trainer, const Graph& graph, const std::string& prefix,
                          Outcome& outcome) {
    for (const PersistentTensor& tensor : trainer.executor().persistent()) {
      const Tensor& meant = graph[tensor.tensor];
      if (tensor.kind != BufferKind::Weight ||
          (meant.role != TensorRole::Weight && meant.role != TensorRole::Buffer))
        continue;
      outcome.tensors[prefix + meant.name] = {meant.type, tensor.values()};
    }
  }

  static void write(const fs::path& path, const Outcome& outcome) {
    std::vector<NamedType> names;
    for (const auto& [name, value] : outcome.tensors) names.push_back({name, value.first});
    SafetensorsWriter file(path.string(), names);
    for (const auto& [name, value] : outcome.tensors) file.write(value.second);
    file.finish();
  }

  Outcome train(const Request& request, const Candidate& candidate) {
    TrainerOptions options;
    options.executor = {.threads = threads_, .pace = false, .paranoid = true};
    Trainer trainer(request.model, candidate.training, candidate.step, candidate.machine, options);
    const Graph& graph = candidate.training.graph;
    if (!fs::exists(request.out / "initial.safetensors")) {
      Outcome initial;
      add_weights(trainer, graph, "", initial);
      write(request.out / "initial.safetensors", initial);
    }
    Outcome outcome;
    for (int64_t step = 1; step <= request.steps; ++step) {
      trainer.executor().watch_gradients([&](const GradientPiece& piece) {
        const Tensor& tensor = graph[piece.weight];
        auto& found = outcome.tensors["gradient." + std::to_string(step) + "." + tensor.name];
        found.first = tensor.type;
        collect(piece, tensor.type.shape, found.second);
      });
      StepRequest wanted;
      wanted.step = step;
      wanted.hyperparameters = request.hyperparameters;
      wanted.load = [&](TensorId tensor, int32_t micro_batch, std::span<std::byte> out) {
        load(request, candidate.training, tensor, step, micro_batch,
             candidate.strategy.micro_batches, out);
      };
      wanted.mean_counts = trainer.mean_counts(candidate.strategy.micro_batches, wanted.load);
      const StepOutcome done = trainer.executor().run(wanted);
      outcome.losses.push_back(done.loss);
      outcome.device_peak = std::max(outcome.device_peak, done.peaks[0]);
      if (done.peaks.size() > 1) outcome.host_peak = std::max(outcome.host_peak, done.peaks[1]);
    }
    add_weights(trainer, graph, "weight.", outcome);
    return outcome;
  }

  void run(const Request& request, size_t number) {
    const std::string& name = request.strategies[number];
    say({{"begin", name}});
    json line = {{"end", name}};
    try {
      const Candidate candidate = make(request, name, number);
      line["complaints"] = complaints(candidate);
      line["limit"] = candidate.machine.devices[0].limit.value;
      line["micro_batches"] = candidate.strategy.micro_batches;
      if (candidate.step.result.status != SimStatus::Done)
        fail(ErrorKind::OutOfMemory, "the step does not fit where it was planned to");
      const auto& peaks = candidate.step.result.peaks;
      line["predicted_peak"] = peaks[0].bytes;
      line["lanes"] = candidate.step.tasks.lanes.size();
      const Outcome first = train(request, candidate), second = train(request, candidate);
      line["losses"] = json::array();
      for (double loss : first.losses)
        line["losses"].push_back(std::isfinite(loss) ? json(loss) : json(fmt::format("{}", loss)));
      line["measured_peak"] = std::max(first.device_peak, second.device_peak);
      line["predicted_host_peak"] = peaks.size() > 1 ? peaks[1].bytes : 0;
      line["measured_host_peak"] = std::max(first.host_peak, second.host_peak);
      line["repeats"] = repeats(first, second);
      write(request.out / (std::to_string(number) + ".safetensors"), first);
    } catch (const Error& error) {
      line["error"] = kind_name(error.kind());
      line["message"] = error.message();
    } catch (const std::exception& error) {
      line["error"] = "internal";
      line["message"] = error.what();
    }
    say(line);
  }

  // What the independent checker says of the tasks and of their timeline.
  static std::vector<std::string> complaints(const Candidate& candidate) {
    const SimulatedStep& step = candidate.step;
    std::vector<std::string> found =
        check_tasks(candidate.training, candidate.machine, candidate.strategy, step.tasks);
    if (step.result.status == SimStatus::Done)
      for (std::string& text : check_run(step.tasks, step.times, step.result))
        found.push_back(std::move(text));
    return found;
  }

  // The name of what differs between two runs; empty: nothing.
  static std::string repeats(const Outcome& first, const Outcome& second) {
    for (const auto& [name, value] : first.tensors)
      if (const auto found = second.tensors.find(name);
          found == second.tensors.end() || found->second.second != value.second)
        return name;
    for (size_t i = 0; i < first.losses.size(); ++i)
      if (std::memcmp(&first.losses[i], &second.losses[i], sizeof(double)) != 0)
        return fmt::format("loss of step {}", i + 1);
    return "";
  }

  const int threads_;
  KernelProfile profile_;
  std::unique_ptr<CostModel> cost_ = analytic_cost_model();
};

}  // namespace
}  // namespace windlass

int main(int count, char** arguments) {
  windlass::Tool(count > 1 ? std::atoi(arguments[1]) : 1).serve(std::cin);
  return 0;
}
