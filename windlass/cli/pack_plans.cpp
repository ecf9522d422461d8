#include "windlass/cli/pack_plans.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/cli/plan_layers.h"
#include "windlass/cli/subject.h"
#include "windlass/cost/model_chain.h"
#include "windlass/plan/check.h"
#include "windlass/plan/packs/check_packs.h"
#include "windlass/plan/packs/long_run.h"
#include "windlass/plan/packs/op_grain.h"
#include "windlass/report/explain_packs_text.h"
#include "windlass/report/json.h"
#include "windlass/report/labels.h"
#include "windlass/report/packs_text.h"
#include "windlass/report/task_listing.h"
#include "windlass/search/packs/explain_packs.h"
#include "windlass/sim/reference/naive.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

struct PackSubject {
  Plan plan;
  Machine machine;
  LayerProfile profile;
};

// Nothing if the plan is not one of packs.
std::optional<PackSubject> load(const std::string& path, const MachineFlags& flags) {
  PackSubject subject;
  subject.plan = read_plan(path);
  const Plan& plan = subject.plan;
  if (!plan.packs) return std::nullopt;
  try {
    subject.machine = flags.machine.empty() ? plan.machine : flags.load();
    check_machine(plan, subject.machine);
    subject.profile = load_chain(plan.model, subject.machine);
    const uint64_t found = fingerprint(subject.profile);
    if (found != plan.model_fingerprint)
      fail_input(
          "plan: it was made for other layers: those of \"{}\" have fingerprint {} now, {} then; "
          "the file or the prices have changed; plan again",
          plan.model.source, format_fingerprint(found), format_fingerprint(plan.model_fingerprint));
    check_pack_strategy(subject.profile, *plan.packs, plan.samples,
                        static_cast<int64_t>(subject.machine.devices.size()));
  } catch (const Error& error) {
    throw error.within(path);
  }
  return subject;
}

// The prediction of a simulated strategy.
Prediction predict_packs(const Machine& machine, const LayerSearchResult& result) {
  Prediction prediction;
  prediction.termination = std::string(termination_name(result.termination));
  prediction.step_time = Seconds(result.step_seconds);
  for (const LayerDevice& device : result.devices)
    prediction.device_peaks.push_back(device.peak_bytes);
  prediction.device_peaks.resize(machine.devices.size(), 0);
  prediction.host_peaks.assign(machine.nodes.size(), 0);
  prediction.host_peaks.front() = result.host_bytes;
  return prediction;
}

// What the reference simulator finds, held against what the plan promises. Steps that do not repeat
// for long are promised by those that were looked at.
std::vector<std::string> compare(const PackSubject& subject, const LongRun& found) {
  constexpr double kNearly = 0.01;
  std::vector<std::string> findings;
  const Prediction& promised = subject.plan.prediction;
  const double off = std::abs(promised.step_time.value - found.seconds);
  if (off > (found.periodic ? 0 : kNearly * found.seconds))
    findings.push_back(fmt::format("the plan promises a step of {} s, it takes {} s",
                                   promised.step_time.value, found.seconds));
  const auto depth = static_cast<size_t>(subject.plan.packs->depth);
  const auto used = static_cast<size_t>(subject.plan.packs->devices());
  const auto expect = [&](const std::string& name, int64_t promise, int64_t peak) {
    if (promise != peak)
      findings.push_back(
          fmt::format("{}: the plan promises a peak of {} bytes, it is {}", name, promise, peak));
  };
  for (size_t d = 0; d < subject.machine.devices.size(); ++d)
    expect(subject.machine.devices[d].name, promised.device_peaks[d],
           d < used ? found.peaks[d % depth] : 0);
  expect("host", promised.host_peaks.front(), found.peaks.back());
  return findings;
}

// The tasks of one step.
ExitCode print_tasks(const PackSubject& subject, bool json) {
  ChainTables chain(subject.profile);
  PackLowering lowering(chain, subject.machine);
  const PackSteps* steps = lowering.lower(*subject.plan.packs, subject.plan.samples, 1);
  if (!steps) fail_input("{}", small_window_text(*subject.plan.packs));
  const TaskListing listing = {
      .graph = *steps->graph,
      .machine = subject.machine,
      .task_name = [&](TaskId id) { return pack_label(steps->tasks[id.index()]); },
      .buffer_name = [&](BufferId id) { return pack_label(steps->buffers[id.index()]); }};
  fmt::print("{}", json ? json_text(tasks_json(listing)) : tasks_text(listing));
  return ExitCode::Done;
}

}  // namespace

LayerProfile load_chain(const ModelRequest& request, const Machine& machine) {
  if (is_layer_profile_file(request.source)) return load_layer_profile(request.source);
  const Model model = load_model(request);
  return chain_of_network(model.graph, request.training, machine, *analytic_cost_model());
}

Plan pack_plan(const ModelRequest& request, const LayerProfile& profile, const Machine& machine,
               int64_t samples, const LayerSearchResult& result) {
  Plan plan;
  plan.model = request;
  plan.model_fingerprint = fingerprint(profile);
  plan.machine = machine;
  plan.machine_fingerprint = fingerprint(machine);
  plan.samples = samples;
  plan.packs = result.strategy ? *result.strategy : harmony_runtime(result.plan);
  if (result.strategy) {
    plan.prediction = predict_packs(machine, result);
  } else {
    const LayerSearchResult simulated = simulate_packs(profile, machine, samples, *plan.packs);
    if (simulated.termination == Termination::Infeasible)
      fail_input(
          "-o: what Harmony's estimate found does not fit by the simulator: {}; use --cost "
          "windlass",
          simulated.reason);
    plan.prediction = predict_packs(machine, simulated);
  }
  plan.provenance = {
      .windlass = std::string(kVersion), .method = "harmony", .seed = 0, .cost = profile.source};
  return plan;
}

namespace {

// The step that a plan for a network is lowered to op by op; nothing for a bare layer profile.
std::optional<TrainingGraph> step_of(const PackSubject& subject) {
  if (is_layer_profile_file(subject.plan.model.source)) return std::nullopt;
  return differentiate(load_model(subject.plan.model).graph, subject.plan.model.training);
}

// What is wrong at the grain of ops. `note`: how many tasks, or why there are none.
std::vector<std::string> check_ops(const PackSubject& subject, std::string& note) {
  const auto training = step_of(subject);
  if (!training) {
    note = fmt::format("simulate only: {}", kNoOps);
    return {};
  }
  const PackStrategy& packs = *subject.plan.packs;
  TaskGraph tasks;
  try {
    tasks = lower_packs(*training, packs, subject.machine);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported && error.kind() != ErrorKind::Input) throw;
    note = fmt::format("simulate only: {}", error.message());
    return {};
  }
  note = fmt::format("{} tasks op by op", tasks.size());
  std::vector<std::string> findings = check_tasks(*training, subject.machine, packs, tasks);
  const TaskTimes times = price_tasks(tasks, subject.machine, *analytic_cost_model());
  for (std::string& finding : check_run(tasks, times, Simulator().run(tasks, times)))
    findings.push_back(std::move(finding));
  return findings;
}

}  // namespace

std::optional<ExitCode> check_pack_plan(const std::string& path, const MachineFlags& machine,
                                        bool json) {
  const auto subject = load(path, machine);
  if (!subject) return std::nullopt;
  ChainTables chain(subject->profile);
  PackLowering lowering(chain, subject->machine);
  const PackStrategy& packs = *subject->plan.packs;
  const int64_t samples = subject->plan.samples;
  const PackSteps* steps = lowering.lower(packs, samples, packs.streams ? kLongRunSteps : 1);
  std::vector<std::string> findings;
  size_t tasks = 0;
  if (!steps) {
    findings.push_back(small_window_text(packs));
  } else {
    tasks = steps->begin[1];
    findings = check_pack_tasks(subject->profile, subject->machine, packs, samples, *steps);
    const SimResult result = simulate_naively(*steps->graph, *steps->times);
    const auto add = [&](std::vector<std::string> more) {
      findings.insert(findings.end(), more.begin(), more.end());
    };
    add(check_run(*steps->graph, *steps->times, result));
    if (result.status == SimStatus::Done) add(compare(*subject, read_long_run(*steps, result)));
  }
  std::string note;
  for (std::string& finding : check_ops(*subject, note)) findings.push_back(std::move(finding));
  if (json) {
    const nlohmann::ordered_json report = {
        {"valid", findings.empty()}, {"tasks", tasks}, {"note", note}, {"findings", findings}};
    fmt::print("{}", json_text(report));
  } else if (findings.empty()) {
    fmt::print(
        "{}: valid; {} tasks a step, each layer once forward and once backward on each sample, "
        "each "
        "update once, peaks as promised; {}\n",
        path, tasks, note);
  } else {
    fmt::print("{}: not valid\n", path);
    for (const std::string& finding : findings) fmt::print("  {}\n", finding);
  }
  return findings.empty() ? ExitCode::Done : ExitCode::BadInput;
}

std::optional<ExitCode> simulate_pack_plan(const std::string& path, const MachineFlags& machine,
                                           bool json, bool tasks) {
  const auto subject = load(path, machine);
  if (!subject) return std::nullopt;
  if (tasks) return print_tasks(*subject, json);
  LayerSearchResult result = simulate_packs(subject->profile, subject->machine,
                                            subject->plan.samples, *subject->plan.packs);
  result.simulated_only = std::string(kNoOps);
  if (const auto training = step_of(*subject)) {
    const OpGrainStep ops = simulate_op_grain(*training, *subject->plan.packs, subject->machine,
                                              *analytic_cost_model());
    result.simulated_only = ops.obstacle;
    if (ops.fits) {
      result.op_step_seconds = ops.seconds;
      result.op_peak_bytes = std::ranges::max(ops.device_peaks);
    }
  }
  fmt::print("{}", packs_report({.model = subject->plan.model.source,
                                 .samples = subject->plan.samples,
                                 .cost = "windlass",
                                 .searched = false,
                                 .written = ""},
                                result, subject->profile.layers(), json));
  return result.termination == Termination::Infeasible ? ExitCode::NoPlan : ExitCode::Done;
}

std::optional<ExitCode> explain_pack_plan(const std::string& path, size_t top, bool json) {
  const auto subject = load(path, {});
  if (!subject) return std::nullopt;
  ChainTables chain(subject->profile);
  const PackExplanation found =
      explain_packs(chain, subject->machine, subject->plan.samples, *subject->plan.packs, top);
  fmt::print("{}", packs_explanation(subject->plan, found, json));
  return found.cost.fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
