#include "windlass/cli/subject.h"

#include <array>
#include <fstream>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

// Of models whose first input is rows of token ids.
std::optional<int64_t> tokens_per_sample(const Graph& graph) {
  if (graph.inputs.empty()) return std::nullopt;
  const TensorType& type = graph[graph.inputs.front()].type;
  if (type.shape.size() != 2 || !is_integer(type.dtype)) return std::nullopt;
  return type.shape[1];
}

}  // namespace

ModelOptions options_of(const ModelRequest& request) {
  ModelOptions options;
  options.batch = request.batch;
  options.sequence = request.sequence;
  options.image = request.image;
  options.dimensions = request.dimensions;
  if (!request.loss.empty()) options.loss = parse_loss(request.loss);
  options.dtype = request.dtype;
  options.fuse = request.fuse;
  options.as_exported = request.as_exported;
  options.freeze = request.freeze;
  options.train = request.train;
  return options;
}

void fill_facts(Subject& subject, const std::string& model, int64_t samples) {
  StepFacts& facts = subject.facts;
  facts.model = model;
  facts.machine = subject.machine.name;
  facts.strategy = subject.strategy.name;
  facts.samples = samples;
  facts.micro_batches = subject.strategy.micro_batches;
  facts.tokens_per_sample = tokens_per_sample(subject.model.graph);
  const TrainingTotals totals = totals_of(subject.training);
  facts.model_flops = Flops((totals.forward.flops() + totals.backward.flops()).value *
                            static_cast<double>(subject.strategy.micro_batches));
}

ModelRequest request_of(const ModelFlags& flags) {
  const ModelOptions options = flags.model_options();
  ModelRequest request;
  request.source = flags.model;
  request.batch = options.batch;
  request.sequence = options.sequence;
  request.image = options.image;
  request.dimensions = options.dimensions;
  if (options.loss) request.loss = format_loss(*options.loss);
  request.dtype = options.dtype;
  request.fuse = options.fuse;
  request.as_exported = options.as_exported;
  request.freeze = options.freeze;
  request.train = options.train;
  request.training = flags.training_options();
  return request;
}

bool is_plan_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 256> start{};
  file.read(start.data(), start.size());
  const std::string_view text(start.data(), static_cast<size_t>(file.gcount()));
  return text.starts_with("{") && text.find("\"windlass plan\"") != std::string_view::npos;
}

Pricing pricing_of(const Subject& subject) {
  const bool measured = subject.plan && runs_here(subject.machine) &&
                        subject.plan->provenance.cost.starts_with(kMeasured);
  Pricing pricing(measured, default_threads(subject.machine.devices.size()));
  if (measured) pricing.know(subject.plan->kernels);
  return pricing;
}

Subject subject_from_flags(const ModelFlags& model, const MachineFlags& machine,
                           const std::string& strategy) {
  const BaselineSpec spec = parse_baseline(strategy);
  Subject subject;
  subject.machine = machine.load();
  subject.request = request_of(model);
  subject.model = load_model(model.model, model.model_options());
  PreparedStep prepared =
      prepare_step(subject.model.graph, spec, subject.machine, model.training_options());
  subject.training = std::move(prepared.training);
  subject.strategy = std::move(prepared.strategy);
  fill_facts(subject, model.model, prepared.samples);
  return subject;
}

Subject subject_from_plan(const std::string& path, const MachineFlags& machine) {
  Subject subject;
  subject.plan = read_plan(path);
  const Plan& plan = *subject.plan;
  if (plan.packs)
    fail_unsupported(
        "{}: a plan of packs of layers is not trainable yet; \"windlass check\" and \"windlass "
        "simulate\" take it",
        path);
  subject.machine = machine.machine.empty() ? plan.machine : machine.load();
  try {
    check_machine(plan, subject.machine);
    subject.request = plan.model;
    subject.model = load_model(plan.model.source, options_of(plan.model));
    check_model(plan, subject.model.graph);
    const Graph cut = cut_batch(subject.model.graph, find_batch(subject.model.graph),
                                plan.strategy.micro_batches);
    subject.training = differentiate(cut, plan.model.training);
    subject.strategy = strategy_of(plan, subject.training);
  } catch (const Error& error) {
    throw error.within(path);
  }
  fill_facts(subject, plan.model.source, plan.samples);
  return subject;
}

}  // namespace windlass
