// Each row names one step, some two; equal steps are simulated once.

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include "windlass/base/parallel.h"
#include "windlass/cost/runner.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/step.h"
#include "windlass/report/lives.h"
#include "windlass/report/validation.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

constexpr int64_t kSequence = 2048;
constexpr int64_t kVocabulary = 51200;
constexpr auto kGibibyte = static_cast<double>(kGiB.value);

struct Job {
  std::string model, machine, strategy;
  int64_t batch = 0;
  bool memory = false;  // or time
  int64_t gpus = 0;
  double weight = 0;                    // how much work it is, about
  std::string runner = {}, dtype = {};  // of a FrameworkStep
  std::optional<int64_t> sequence = {};
  std::string optimizer = {};
  bool fused_attention = true;

  auto key() const {
    return std::tie(model, machine, strategy, batch, memory, runner, dtype, sequence, optimizer,
                    fused_attention);
  }
  bool operator<(const Job& other) const { return key() < other.key(); }
};

struct Figures {
  double time = 0;                              // s
  double pass = 0;                              // s until the update begins, of a FrameworkStep
  std::map<CountedMemory, double> memory = {};  // bytes on the fullest card, of a FrameworkStep
  double kept = 0;                              // bytes, worst device
  double state = 0;                             // bytes, average over the GPUs
};

Job job_of(const ValidationRow& row, bool memory) {
  Job job;
  job.model =
      fmt::format("gpt3:layers={},hidden={},heads={},dropout=10,vocab={},positions={},sequence={}",
                  row.layers, row.hidden, row.heads, kVocabulary, kSequence, kSequence);
  job.machine = fmt::format("8xa100-80g*{}", (row.gpus + 7) / 8);
  const int64_t dp = std::max<int64_t>(1, row.gpus / (row.tp * row.pp));
  const bool alone = row.tp == 1 && row.pp == 1 && row.gpus <= 8;
  job.strategy = fmt::format(
      "megatron:dp={},tp={},pp={},interleave={},micro={},recompute={},sequence-parallel={}",
      alone ? 1 : dp, row.tp, row.pp, row.interleave, row.micro, row.recompute,
      row.sequence_parallel ? "on" : "off");
  job.batch = row.batch;
  // A full pipeline holds no more, however long it runs.
  if (memory) job.batch = std::min(job.batch, 2 * row.pp * row.micro * dp);
  job.memory = memory;
  job.gpus = row.gpus;
  job.weight = static_cast<double>(row.layers) * static_cast<double>(job.batch) /
               static_cast<double>(row.micro * dp);
  return job;
}

bool is_memory(ValidatedFigure figure) {
  return figure != ValidatedFigure::StepTime && figure != ValidatedFigure::FlopsRate;
}

ValidationRow baseline_of(ValidationRow row) {
  row.recompute = "none";
  row.sequence_parallel = false;
  return row;
}

ValidationRow without_a_layer(ValidationRow row) {
  --row.layers;
  return row;
}

std::vector<Job> jobs_of(const FrameworkStep& step) {
  Job job;
  job.model = step.model;
  job.machine = step.machine;
  job.strategy = step.strategy;
  job.batch = step.batch;
  job.runner = step.runner;
  job.dtype = step.dtype;
  job.sequence = step.sequence;
  job.optimizer = step.optimizer;
  job.fused_attention = step.fused_attention;
  job.weight = static_cast<double>(step.batch);
  if (step.less_model.empty()) return {job};
  Job less = job;
  less.model = step.less_model;
  return {job, less};
}

std::vector<Job> jobs_of(const ValidationTable& table, const ValidationRow& row) {
  if (row.framework) return jobs_of(*row.framework);
  std::vector<Job> jobs = {job_of(row, is_memory(table.figure))};
  if (table.figure == ValidatedFigure::KeptShare) jobs.push_back(job_of(baseline_of(row), true));
  if (table.figure == ValidatedFigure::LayerMemory)
    jobs.push_back(job_of(without_a_layer(row), true));
  return jobs;
}

// By tensor: whether it is kept for the transformer layers, as the published figures count. Left
// out are the embedding, the last norm, the logits, and the causal mask.
std::vector<bool> of_layers(const Graph& graph) {
  std::vector<bool> result(graph.tensors.size());
  for (const Op& op : graph.ops) {
    const Op& forward = op.forward.valid() ? graph[op.forward] : op;
    if (!forward.name.starts_with("transformer.h.")) continue;
    for (TensorId id : op.inputs)
      if (id.valid()) result[id.index()] = true;
  }
  for (size_t t = 0; t < result.size(); ++t)
    if (graph.tensors[t].name.starts_with("attention_mask")) result[t] = false;
  return result;
}

Figures run_framework(const Job& job) {
  const Runner runner = find_runner(job.runner);
  const std::optional<DType> dtype = dtype_from_name(job.dtype);
  ModelOptions options;
  options.batch = job.batch;
  options.sequence = job.sequence;
  options.dtype = weight_dtype(runner, dtype);
  options.fuse = job.fused_attention;
  TrainingOptions training;
  training.optimizer = *optimizer_from_name(job.optimizer);
  set_training(runner, training);
  const Machine machine = machine_under(runner, load_machine(job.machine));
  const PreparedStep prepared =
      prepare_step(graph_under(runner, load_model(job.model, options).graph, dtype),
                   parse_baseline(job.strategy), machine, training);
  const SimulatedStep step =
      simulate_step(prepared.training, prepared.strategy, machine,
                    *analytic_cost_model(analytic_options(runner)), {.enforce_limits = false});
  Nanoseconds end = step.result.makespan;
  for (size_t i = 0; i < step.tasks.size(); ++i)
    if (step.tasks.tasks[i].kind == TaskKind::Update) end = std::min(end, step.result.start[i]);
  Figures figures;
  figures.time = step.step_time().value;
  figures.pass = static_cast<double>(end) * 1e-9;
  for (size_t m = 0; m < step.tasks.memories.size(); ++m) {
    const TeamId team = step.tasks.memories[m].team;
    if (!team.valid()) continue;
    const Bytes tensors(step.result.peaks[m].bytes);
    const Bytes card = footprint(runner, machine, step.tasks[team].devices.front(), tensors);
    const auto most = [&](CountedMemory counted, double bytes) {
      figures.memory[counted] = std::max(figures.memory[counted], bytes);
    };
    most(CountedMemory::Allocated, static_cast<double>(tensors.value));
    most(CountedMemory::Reserved, static_cast<double>(tensors.value) * runner.fragmentation);
    most(CountedMemory::Card, static_cast<double>(card.value));
  }
  return figures;
}

Figures run(const Job& job) {
  if (!job.runner.empty()) return run_framework(job);
  ModelOptions model_options;
  model_options.batch = job.batch;
  model_options.dtype = DType::F16;
  model_options.fuse = false;
  TrainingOptions training;
  training.gradient_dtype = DType::F32;
  const Model model = load_model(job.model, model_options);
  const Machine machine = load_machine(job.machine);
  const PreparedStep prepared =
      prepare_step(model.graph, parse_baseline(job.strategy), machine, training);
  // The plain rows of the published tables do not fit: the paper says so too.
  const SimulatedStep step = simulate_step(prepared.training, prepared.strategy, machine,
                                           *analytic_cost_model(), {.enforce_limits = false});
  Figures figures;
  figures.time = step.step_time().value;
  if (!job.memory) return figures;
  std::vector<bool> kept = kept_between_passes(step.tasks);
  const std::vector<bool> counted = of_layers(prepared.training.graph);
  for (size_t i = 0; i < kept.size(); ++i) {
    const TensorId tensor = step.tasks.buffers[i].tensor;
    kept[i] = kept[i] && tensor.valid() && counted[tensor.index()];
  }
  const std::vector<MemoryUse> uses = memory_uses(step.tasks, step.result, kept);
  for (size_t m = 0; m < uses.size(); ++m) {
    const TeamId team = step.tasks.memories[m].team;
    if (!team.valid()) continue;
    const auto most = [&](BufferKind kind) {
      return static_cast<double>(uses[m].most[static_cast<size_t>(kind)]);
    };
    const double state = most(BufferKind::Weight) + most(BufferKind::WeightGradient) +
                         most(BufferKind::OptimizerState);
    figures.state += state * static_cast<double>(step.tasks[team].devices.size());
    figures.kept = std::max(figures.kept, static_cast<double>(uses[m].kept));
  }
  figures.state /= static_cast<double>(job.gpus);
  return figures;
}

// F of Narayanan et al., section 3.2: a forward pass twice, a backward pass that costs two.
double paper_flops(const ValidationRow& row) {
  const auto batch = static_cast<double>(row.batch), layers = static_cast<double>(row.layers);
  const auto hidden = static_cast<double>(row.hidden);
  constexpr auto s = static_cast<double>(kSequence), v = static_cast<double>(kVocabulary);
  return 96 * batch * s * layers * hidden * hidden *
         (1 + s / (6 * hidden) + v / (16 * layers * hidden));
}

double predict(const ValidationTable& table, const ValidationRow& row,
               const std::map<Job, Figures>& figures) {
  const std::vector<Job> jobs = jobs_of(table, row);
  const Figures& own = figures.at(jobs[0]);
  switch (table.figure) {
    case ValidatedFigure::StepTime: return own.time;
    case ValidatedFigure::FlopsRate:
      return paper_flops(row) / own.time / static_cast<double>(row.gpus) * 1e-12;
    case ValidatedFigure::StateMemory: return own.state / kGibibyte;
    case ValidatedFigure::KeptMemory: return own.kept / kGibibyte;
    case ValidatedFigure::KeptShare: return 100 * own.kept / figures.at(jobs[1]).kept;
    case ValidatedFigure::LayerMemory:
      return (own.kept - figures.at(jobs[1]).kept) / static_cast<double>(kMiB.value);
    case ValidatedFigure::PassTime: {
      const double less = jobs.size() > 1 ? figures.at(jobs[1]).pass : 0;
      return 1e3 * (own.pass - less) / static_cast<double>(row.framework->layers);
    }
    case ValidatedFigure::WholeTime: return 1e3 * own.time;
    case ValidatedFigure::WholeMemory:
      return own.memory.at(row.framework->counted) / static_cast<double>(kMiB.value);
  }
  return 0;
}

}  // namespace

void run_validation(std::vector<ValidationTable>& tables, size_t threads,
                    const std::function<void(size_t, size_t)>& done) {
  std::map<Job, Figures> figures;
  for (const ValidationTable& table : tables)
    for (const ValidationRow& row : table.rows)
      for (const Job& job : jobs_of(table, row)) figures[job];
  std::vector<std::map<Job, Figures>::value_type*> order;
  for (auto& entry : figures) order.push_back(&entry);
  // The long ones first, so that no thread is left with one at the end.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->first.weight > b->first.weight; });

  std::mutex mutex;
  size_t finished = 0;
  in_parallel(order.size(), std::max<size_t>(1, threads), [&](size_t i) {
    order[i]->second = run(order[i]->first);
    const std::lock_guard lock(mutex);
    ++finished;
    if (done) done(finished, order.size());
  });
  for (ValidationTable& table : tables)
    for (ValidationRow& row : table.rows) row.predicted = predict(table, row, figures);
}

}  // namespace windlass
