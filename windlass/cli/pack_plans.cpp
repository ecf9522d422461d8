#include "windlass/cli/pack_plans.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/cost/model_chain.h"
#include "windlass/plan/check.h"
#include "windlass/plan/packs/check_packs.h"
#include "windlass/plan/packs/long_run.h"
#include "windlass/report/explain_packs_text.h"
#include "windlass/report/json.h"
#include "windlass/report/labels.h"
#include "windlass/report/packs_text.h"
#include "windlass/report/task_listing.h"
#include "windlass/search/packs/explain_packs.h"
#include "windlass/sim/reference/naive.h"

namespace windlass {
namespace {

// A plan of packs with the layers that it is for.
struct PackSubject {
  Plan plan;
  Machine machine;
  LayerProfile profile;

  const PackStrategy& packs() const { return *plan.strategy.packs; }
};

PackSubject load(const std::string& path, const MachineFlags& flags) {
  Plan plan = read_plan(path);
  try {
    Machine machine = flags.machine.empty() ? plan.machine : flags.load();
    check_machine(plan, machine);
    LayerProfile profile = load_chain(plan.model, machine);
    if (!is_profile_plan(plan))
      check_model(plan, load_model(plan.model).graph);
    else if (const uint64_t found = fingerprint(profile); found != plan.model_fingerprint)
      fail_input(
          "plan: it was made for other layers: those of \"{}\" have fingerprint {} now, {} then; "
          "the file has changed; plan again",
          plan.model.source, format_fingerprint(found), format_fingerprint(plan.model_fingerprint));
    check_pack_strategy(profile, *plan.strategy.packs, plan.samples,
                        static_cast<int64_t>(machine.devices.size()));
    return {std::move(plan), std::move(machine), std::move(profile)};
  } catch (const Error& error) {
    throw error.within(path);
  }
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
  const auto depth = static_cast<size_t>(subject.packs().depth);
  const auto used = static_cast<size_t>(subject.packs().devices());
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
  const PackSteps* steps = lowering.lower(subject.packs(), subject.plan.samples, 1);
  if (!steps) fail_input("{}", small_window_text(subject.packs()));
  const TaskListing listing = {
      .graph = *steps->graph,
      .machine = subject.machine,
      .task_name = [&](TaskId id) { return pack_label(steps->tasks[id.index()]); },
      .buffer_name = [&](BufferId id) { return pack_label(steps->buffers[id.index()]); }};
  fmt::print("{}", json ? json_text(tasks_json(listing)) : tasks_text(listing));
  return ExitCode::Done;
}

}  // namespace

bool is_layer_profile_file(const std::string& path) {
  constexpr uintmax_t kMost = uintmax_t{256} << 20;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed) || failed) return false;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed || size > kMost) return false;
  std::ifstream file(path, std::ios::binary);
  // Most other files are told apart by their first character.
  if (file.peek() != '{') return false;
  return is_layer_profile(std::string{std::istreambuf_iterator<char>(file), {}});
}

LayerProfile load_chain(const ModelRequest& request, const Machine& machine) {
  if (is_layer_profile_file(request.source)) return load_layer_profile(request.source);
  const Model model = load_model(request);
  return chain_of_network(model.graph, request.training, machine, *analytic_cost_model());
}

bool is_profile_plan(const Plan& plan) {
  return plan.strategy.packs && is_layer_profile_file(plan.model.source);
}

namespace {

// Nothing if the strategy is not packs, or layers are not priced as far as its micro-batches.
std::optional<LayerSearchResult> long_run_of(const Subject& subject, const CostModel& cost,
                                             bool baselines) {
  if (!subject.strategy.packs) return std::nullopt;
  try {
    const LayerProfile profile =
        chain_of_network(subject.model.graph, subject.request.training, subject.machine, cost);
    return simulate_packs(profile, subject.machine, subject.facts.samples, *subject.strategy.packs,
                          baselines);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    return std::nullopt;
  }
}

}  // namespace

nlohmann::ordered_json with_packs(nlohmann::ordered_json json, const Subject& subject,
                                  const CostModel& cost, bool baselines) {
  if (!subject.strategy.packs) return json;
  json["harmony"] = harmony_json(harmony_plan_of(*subject.strategy.packs));
  if (const auto long_run = long_run_of(subject, cost, baselines))
    json["long_run"] = long_run_json(*long_run);
  return json;
}

std::string long_run_text_of(const Subject& subject, const CostModel& cost, bool baselines) {
  const auto long_run = long_run_of(subject, cost, baselines);
  return long_run ? long_run_text(*long_run) : "";
}

Plan profile_plan(const std::string& path, const LayerProfile& profile, const Machine& machine,
                  int64_t samples, const LayerSearchResult& result) {
  Plan plan;
  plan.model.source = path;
  plan.model_fingerprint = fingerprint(profile);
  plan.machine = machine;
  plan.machine_fingerprint = fingerprint(machine);
  plan.samples = samples;
  plan.strategy =
      strategy_of_packs(result.strategy ? *result.strategy : harmony_runtime(result.plan));
  if (result.strategy) {
    plan.prediction = predict_packs(machine, result);
  } else {
    const LayerSearchResult simulated =
        simulate_packs(profile, machine, samples, *plan.strategy.packs);
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

ExitCode check_profile_plan(const std::string& path, const MachineFlags& machine, bool json) {
  const PackSubject subject = load(path, machine);
  ChainTables chain(subject.profile);
  PackLowering lowering(chain, subject.machine);
  const PackStrategy& packs = subject.packs();
  const int64_t samples = subject.plan.samples;
  const PackSteps* steps = lowering.lower(packs, samples, packs.streams ? kLongRunSteps : 1);
  std::vector<std::string> findings;
  size_t tasks = 0;
  if (!steps) {
    findings.push_back(small_window_text(packs));
  } else {
    tasks = steps->begin[1];
    findings = check_pack_tasks(subject.profile, subject.machine, packs, samples, *steps);
    const SimResult result = simulate_naively(*steps->graph, *steps->times);
    const auto add = [&](std::vector<std::string> more) {
      findings.insert(findings.end(), more.begin(), more.end());
    };
    add(check_run(*steps->graph, *steps->times, result));
    if (result.status == SimStatus::Done) add(compare(subject, read_long_run(*steps, result)));
  }
  const std::string note = fmt::format("simulate only: {}", kNoOps);
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

ExitCode simulate_profile_plan(const std::string& path, const MachineFlags& machine, bool json,
                               bool tasks) {
  const PackSubject subject = load(path, machine);
  if (tasks) return print_tasks(subject, json);
  const LayerSearchResult result =
      simulate_packs(subject.profile, subject.machine, subject.plan.samples, subject.packs());
  fmt::print("{}", packs_report({.model = subject.plan.model.source,
                                 .bare = true,
                                 .samples = subject.plan.samples,
                                 .cost = "windlass",
                                 .searched = false,
                                 .written = ""},
                                result, json));
  return result.termination == Termination::Infeasible ? ExitCode::NoPlan : ExitCode::Done;
}

std::optional<ExitCode> explain_pack_plan(const std::string& path, size_t top, bool json) {
  if (!read_plan(path).strategy.packs) return std::nullopt;
  const PackSubject subject = load(path, {});
  ChainTables chain(subject.profile);
  const PackExplanation found =
      explain_packs(chain, subject.machine, subject.plan.samples, subject.packs(), top);
  fmt::print("{}", packs_explanation(subject.plan, found, json));
  return found.cost.fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace windlass
