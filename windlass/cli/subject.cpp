#include "windlass/cli/subject.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "windlass/base/error.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cost/calibrated.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/micro_batch.h"
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

void name_by_degrees(Subject& subject) {
  const BatchAxes batch = find_batch(subject.model.graph);
  subject.strategy.name =
      degrees_title(degrees_of(subject.training, batch, subject.strategy, batch.samples));
}

void fill_facts(Subject& subject, int64_t samples) {
  StepFacts& facts = subject.facts;
  facts.model = subject.request.source;
  facts.machine = subject.machine.name;
  facts.runner = subject.request.runner;
  facts.strategy = subject.strategy.name;
  facts.samples = samples;
  facts.micro_batches = subject.strategy.micro_batches;
  if (const auto& packs = subject.strategy.packs)
    facts.micro_batches = samples / (packs->replicas * packs->backward_microbatch);
  facts.tokens_per_sample = tokens_per_sample(subject.model.graph);
  facts.model_flops = flops_of(subject.training, subject.strategy.micro_batches);
  facts.parameters = parameter_count(subject.model.graph);
  facts.degrees =
      degrees_of(subject.training, find_batch(subject.model.graph), subject.strategy, samples);
}

bool is_plan_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 256> start{};
  file.read(start.data(), start.size());
  const std::string_view text(start.data(), static_cast<size_t>(file.gcount()));
  return text.starts_with("{") && text.find("\"windlass plan\"") != std::string_view::npos;
}

void fill_range(Subject& subject) {
  if (std::ranges::none_of(subject.machine.device_types,
                           [](const DeviceType& type) { return type.calibration.any(); }))
    return;
  const auto time_at = [&](CalibrationEnd end) {
    AnalyticOptions options = analytic_options(subject.request.runner);
    options.calibration_end = end;
    const auto cost = analytic_cost_model(options);
    return simulate_step(subject.training, subject.strategy, with_copies_at(subject.machine, end),
                         *cost)
        .step_time();
  };
  subject.facts.range = {time_at(CalibrationEnd::Low), time_at(CalibrationEnd::High)};
}

Pricing pricing_of(const Subject& subject) {
  const bool measured = subject.plan && measured_here(subject.machine) &&
                        subject.plan->provenance.cost.starts_with(kMeasured);
  const size_t devices = devices_here(subject.machine);
  Pricing pricing(measured, default_threads(devices), static_cast<int>(devices), {},
                  subject.request.runner);
  if (measured) pricing.know(subject.plan->kernels);
  return pricing;
}

Subject subject_from_flags(const ModelFlags& model, const MachineFlags& machine,
                           const std::string& strategy) {
  const BaselineSpec spec = parse_baseline(strategy);
  Subject subject;
  subject.request = model.model();
  if (spec.ep > 1 && subject.request.expert_capacity == 0)
    subject.request.expert_capacity = kExpertCapacity;
  subject.machine = machine_under(subject.request.runner, machine.load());
  subject.model = load_model(subject.request);
  PreparedStep prepared =
      prepare_step(subject.model.graph, spec, subject.machine, subject.request.training);
  if (prepared.strategy.packs && !is_windlass(subject.request.runner))
    fail_unsupported("strategy \"{}\": packs of layers are windlass's own, not of {}", strategy,
                     subject.request.runner.name);
  subject.training = std::move(prepared.training);
  subject.strategy = std::move(prepared.strategy);
  if (!subject.request.runner.overlaps_copies) subject.strategy.in_turn = true;
  fill_facts(subject, prepared.samples);
  return subject;
}

Subject subject_from_plan(const std::string& path, const MachineFlags& machine, ForWhom for_whom) {
  return subject_of_plan(read_plan(path), path, machine, for_whom);
}

Subject subject_of_plan(Plan given, const std::string& path, const MachineFlags& machine,
                        ForWhom for_whom) {
  Subject subject;
  subject.plan = std::move(given);
  const Plan& plan = *subject.plan;
  const Runner& runner = plan.model.runner;
  if (for_whom == ForWhom::Windlass && !is_windlass(runner))
    fail_input("{}: it is a plan for {}, which windlass does not run; plan again without --runner",
               path, runner.name);
  if (is_profile_plan(plan)) fail_unsupported("{}: it can be simulated only: {}", path, kNoOps);
  subject.machine = machine.machine.empty() ? plan.machine : machine_under(runner, machine.load());
  try {
    check_machine(plan, subject.machine);
    subject.request = plan.model;
    subject.model = load_model(plan.model);
    check_model(plan, subject.model.graph);
    subject.training =
        cut_training(subject.model.graph, plan.strategy.micro_batches, plan.model.training)
            .training;
    subject.strategy = strategy_of(plan, subject.training);
  } catch (const Error& error) {
    throw error.within(path);
  }
  fill_facts(subject, plan.samples);
  return subject;
}

}  // namespace windlass
