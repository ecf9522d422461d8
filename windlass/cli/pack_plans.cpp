#include "windlass/cli/pack_plans.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/cli/packs_text.h"
#include "windlass/cli/plan_layers.h"
#include "windlass/cli/subject.h"
#include "windlass/plan/check.h"
#include "windlass/search/harmony/check_packs.h"
#include "windlass/search/harmony/model_chain.h"
#include "windlass/sim/reference/naive.h"

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

// What the reference simulator finds, held against what the plan promises.
std::vector<std::string> compare(const PackSubject& subject, const PackSteps& steps,
                                 const SimResult& result) {
  std::vector<std::string> findings;
  Nanoseconds before = 0, end = 0;
  for (size_t step = 0; step + 1 < steps.begin.size(); ++step) {
    before = end;
    for (size_t i = steps.begin[step]; i < steps.begin[step + 1]; ++i)
      end = std::max(end, result.end[i]);
  }
  const Prediction& promised = subject.plan.prediction;
  const double seconds = static_cast<double>(end - before) * 1e-9;
  if (promised.step_time.value != seconds)
    findings.push_back(fmt::format("the plan promises a step of {} s, it takes {} s",
                                   promised.step_time.value, seconds));
  const auto depth = static_cast<size_t>(subject.plan.packs->depth);
  const auto used = static_cast<size_t>(subject.plan.packs->devices());
  const auto expect = [&](const std::string& name, int64_t promise, int64_t found) {
    if (promise != found)
      findings.push_back(
          fmt::format("{}: the plan promises a peak of {} bytes, it is {}", name, promise, found));
  };
  for (size_t d = 0; d < subject.machine.devices.size(); ++d)
    expect(subject.machine.devices[d].name, promised.device_peaks[d],
           d < used ? result.peaks[d % depth].bytes : 0);
  expect("host", promised.host_peaks.front(), result.peaks.back().bytes);
  return findings;
}

}  // namespace

LayerProfile load_chain(const ModelRequest& request, const Machine& machine) {
  if (is_layer_profile_file(request.source)) return load_layer_profile(request.source);
  const Model model = load_model(request.source, options_of(request));
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

std::optional<ExitCode> check_pack_plan(const std::string& path, const MachineFlags& machine,
                                        bool json) {
  const auto subject = load(path, machine);
  if (!subject) return std::nullopt;
  ChainTables chain(subject->profile);
  PackLowering lowering(chain, subject->machine);
  const PackStrategy& packs = *subject->plan.packs;
  const int64_t samples = subject->plan.samples;
  const PackSteps* steps = lowering.lower(packs, samples, packs.streams ? 2 : 1);
  std::vector<std::string> findings;
  size_t tasks = 0;
  if (!steps) {
    findings.push_back(
        fmt::format("a window of {} bytes for weights and gradients is too small for a pack",
                    packs.state_bytes));
  } else {
    tasks = steps->graph->size();
    findings = check_pack_tasks(subject->profile, subject->machine, packs, samples, *steps);
    const SimResult result = simulate_naively(*steps->graph, *steps->times);
    const auto add = [&](std::vector<std::string> more) {
      findings.insert(findings.end(), more.begin(), more.end());
    };
    add(check_run(*steps->graph, *steps->times, result));
    if (result.status == SimStatus::Done) add(compare(*subject, *steps, result));
  }
  if (json) {
    const nlohmann::ordered_json report = {
        {"valid", findings.empty()}, {"tasks", tasks}, {"findings", findings}};
    fmt::print("{}\n",
               report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (findings.empty()) {
    fmt::print(
        "{}: valid; {} tasks, each layer once forward and once backward on each sample, each "
        "update once, peaks as promised\n",
        path, tasks);
  } else {
    fmt::print("{}: not valid\n", path);
    for (const std::string& finding : findings) fmt::print("  {}\n", finding);
  }
  return findings.empty() ? ExitCode::Done : ExitCode::BadInput;
}

std::optional<ExitCode> simulate_pack_plan(const std::string& path, const MachineFlags& machine,
                                           bool json) {
  const auto subject = load(path, machine);
  if (!subject) return std::nullopt;
  const LayerSearchResult result = simulate_packs(subject->profile, subject->machine,
                                                  subject->plan.samples, *subject->plan.packs);
  report_packs({.model = subject->plan.model.source,
                .samples = subject->plan.samples,
                .cost = "windlass",
                .searched = false,
                .written = ""},
               result, subject->profile.layers(), json);
  return result.termination == Termination::Infeasible ? ExitCode::NoPlan : ExitCode::Done;
}

}  // namespace windlass
