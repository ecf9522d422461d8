// `windlass plan`: the fastest way to train inside the limit that was found, or what it would take.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"
#include "windlass/report/json.h"
#include "windlass/report/text.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct PlanFlags {
  ModelFlags model;
  MachineFlags machine;
  std::string output;
  double time_limit = 60;
  int threads = 0;
  bool json = false;
  size_t top = 8;
};

// Saved tensors and their bytes by what becomes of them.
struct ActionTotals {
  int64_t tensors = 0;
  int64_t bytes = 0;
};
std::map<MemoryAction, ActionTotals> totals_of(const Subject& subject) {
  std::map<MemoryAction, ActionTotals> totals;
  for (size_t s = 0; s < subject.training.saved.size(); ++s) {
    ActionTotals& entry = totals[subject.strategy.saved[s]];
    ++entry.tensors;
    entry.bytes += subject.training.saved[s].bytes.value * subject.strategy.micro_batches;
  }
  return totals;
}

// "12 of 40 weights on the host, updated there".
std::string residency_text(const Strategy& strategy) {
  const auto count = [&](auto&& wanted) { return std::ranges::count_if(strategy.weights, wanted); };
  const auto hosts = count([](const Residency& r) { return r.host; });
  const auto updates = count([](const Residency& r) { return r.host_update; });
  if (hosts == 0 && updates == 0) return "weights and optimizer state stay on the device";
  std::string text;
  if (hosts > 0)
    text = fmt::format("{} of {} weights rest in host memory and are streamed", hosts,
                       strategy.weights.size());
  else
    text = "weights stay on the device";
  if (updates > 0)
    text += fmt::format("; optimizer state of {} in host memory, updated there", updates);
  return text;
}

ordered_json decisions_json(const Subject& subject) {
  ordered_json saved = ordered_json::object();
  for (const auto& [action, total] : totals_of(subject))
    saved[std::string(action_name(action))] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  const auto& weights = subject.strategy.weights;
  return {{"micro_batches", subject.strategy.micro_batches},
          {"saved", saved},
          {"weights_on_host", std::ranges::count_if(weights, &Residency::host)},
          {"updated_on_host", std::ranges::count_if(weights, &Residency::host_update)}};
}

std::string decisions_text(const Subject& subject) {
  std::string text = fmt::format("  {} micro-batch{}; {}\n", subject.strategy.micro_batches,
                                 subject.strategy.micro_batches == 1 ? "" : "es",
                                 residency_text(subject.strategy));
  text += "  saved for the backward pass:";
  for (const auto& [action, total] : totals_of(subject))
    text += fmt::format(" {} {} ({})", action_name(action), format_bytes(Bytes(total.bytes)),
                        total.tensors);
  return text + "\n";
}

void print_json(const ordered_json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

void add_search(ordered_json& json, const SearchResult& search) {
  json["search"] = {
      {"method", "one-device"}, {"seconds", search.seconds.value}, {"proposals", search.tried}};
}

ExitCode print_infeasible(const PlanFlags& flags, const PlannedSubject& planned) {
  const Subject& subject = planned.subject;
  const SimulationReport report = report_simulation(planned.step, &subject.training.graph,
                                                    subject.machine, subject.facts, flags.top);
  const std::string reason = report.failure ? failure_reason(*report.failure)
                                            : std::string("the host has too little memory");
  if (flags.json) {
    ordered_json json = {{"termination", "infeasible"}, {"model", flags.model.model}};
    json["limit_bytes"] = subject.machine.devices[0].limit.value;
    if (planned.search.least_limit) json["minimum_limit_bytes"] = planned.search.least_limit->value;
    json["reason"] = reason;
    json["most_frugal"] = decisions_json(subject);
    add_search(json, planned.search);
    print_json(json);
    return ExitCode::NoPlan;
  }
  fmt::print("no plan fits {}\n", format_bytes(subject.machine.devices[0].limit));
  if (planned.search.least_limit)
    fmt::print("  least limit: {} ({} bytes), of {} strategies tried\n",
               format_bytes(*planned.search.least_limit), planned.search.least_limit->value,
               planned.search.tried);
  fmt::print("  the most frugal one: {}\n{}", reason, decisions_text(subject));
  fmt::print(
      "  what helps: a smaller batch or sequence, --dtype bf16, an optimizer with less "
      "state, a larger --memory\n");
  return ExitCode::NoPlan;
}

ExitCode run_plan(const PlanFlags& flags) {
  if (flags.machine.machine.empty()) fail_input("--on is missing: name a machine, e.g. --on local");
  Machine machine = flags.machine.load();
  const int threads = flags.threads > 0 ? flags.threads : default_threads(machine.devices.size());
  Pricing pricing(runs_here(machine), threads);
  const PlannedSubject planned =
      plan_subject(flags.model, std::move(machine), pricing, Seconds(flags.time_limit));
  const Subject& subject = planned.subject;
  if (!planned.fits) return print_infeasible(flags, planned);
  if (!flags.output.empty())
    write_plan(
        plan_of(subject, planned.step, std::string(termination_name(planned.search.termination)),
                "one-device", pricing),
        flags.output);
  const SimulationReport report = report_simulation(planned.step, &subject.training.graph,
                                                    subject.machine, subject.facts, flags.top);
  const double gap =
      1 - planned.search.lower_bound.value / std::max(1e-12, planned.search.step_time.value);
  if (flags.json) {
    ordered_json json = simulation_json(report, subject.machine);
    json["termination"] = termination_name(planned.search.termination);
    json["lower_bound_s"] = planned.search.lower_bound.value;
    json["gap"] = gap;
    json["decisions"] = decisions_json(subject);
    add_search(json, planned.search);
    if (!flags.output.empty()) json["plan"] = flags.output;
    print_json(json);
    return ExitCode::Done;
  }
  fmt::print("plan ({}, {:.1f} % above the work alone; {} strategies tried in {})\n{}\n",
             termination_name(planned.search.termination), 100 * gap, planned.search.tried,
             format_seconds(planned.search.seconds), decisions_text(subject));
  fmt::print("{}", simulation_text(report, flags.top));
  if (!flags.output.empty())
    fmt::print("\nwritten to {}; train it with: windlass train {} --data FILE\n", flags.output,
               flags.output);
  return ExitCode::Done;
}

}  // namespace

void add_plan(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "plan", "The fastest way to train a model inside a memory limit, or what it would take.");
  auto flags = std::make_shared<PlanFlags>();
  flags->model.add_to(*verb);
  verb->add_option("--on", flags->machine.machine, "machine: \"local\", a preset or a JSON file")
      ->type_name("MACHINE");
  flags->machine.add_to(*verb);
  verb->add_option("-o,--output", flags->output, "write the plan to a file")->type_name("PLAN");
  verb->add_option("--time-limit", flags->time_limit, "seconds to search")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", flags->threads, "threads that kernels use; default: all cores")
      ->check(CLI::PositiveNumber);
  verb->add_option("--top", flags->top, "how many tensors and links to list")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "On \"local\" every kernel of the model is run once to measure its time and workspace, so "
      "that\n"
      "the prediction is of the kernels that train. For one device so far: what is kept, "
      "recomputed\n"
      "or moved to host memory, where weights and optimizer state live, and how the batch is cut.\n"
      "If nothing fits, the exit code is 2 and the least limit that would do is printed.\n"
      "Examples:\n"
      "  windlass plan gpt2 --batch 4 --on local --memory 2GiB -o plan.json\n"
      "  windlass plan resnet-50 --batch 16 --on local --memory 600MiB --link-bandwidth 12GB/s\n"
      "  windlass train plan.json --data text.txt --steps 100");
  verb->callback([flags, &exit_code] { exit_code = run_plan(*flags); });
}

}  // namespace windlass
