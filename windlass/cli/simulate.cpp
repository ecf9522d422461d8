// `windlass simulate`: what a training step costs under a strategy, in time and in bytes.

#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/pricing.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/subject.h"
#include "windlass/plan/check.h"
#include "windlass/report/json.h"
#include "windlass/report/packs_text.h"
#include "windlass/report/simulation_text.h"
#include "windlass/report/task_listing.h"
#include "windlass/report/trace.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

struct SimulateFlags {
  ModelFlags model;
  MachineFlags machine;
  std::string strategy;
  std::string trace;
  std::string save;
  bool json = false;
  bool tasks = false;
  size_t top = 8;
};

void save_trace(const std::string& path, const SimulatedStep& step, const Subject& subject) {
  const Progress progress("writing the trace");
  AtomicFile file(path);
  const TraceSummary summary = write_trace(step, &subject.training.graph, subject.machine,
                                           [&](std::string_view text) { file.write(text); });
  file.commit();
  if (summary.cut)
    fmt::print(stderr, "note: {}: cut after {} events, {} into the step\n", path, summary.events,
               format_seconds(summary.until));
}

Subject load_subject(const SimulateFlags& flags) {
  if (is_plan_file(flags.model.request.source)) {
    if (!flags.strategy.empty())
      fail_input("{}: a plan has its own strategy; leave --strategy away",
                 flags.model.request.source);
    flags.model.refuse_beside_plan();
    return subject_from_plan(flags.model.request.source, flags.machine, ForWhom::AnyRunner);
  }
  if (flags.machine.machine.empty())
    fail_input("--on is missing: name a machine, e.g. --on 4x3090");
  if (flags.strategy.empty())
    fail_input("--strategy is missing: name one, e.g. --strategy data-parallel");
  return subject_from_flags(flags.model, flags.machine, flags.strategy);
}

// Plans for bare layer profiles have a report of their own.
std::optional<ExitCode> simulate_profile(const SimulateFlags& flags) {
  const std::string& path = flags.model.request.source;
  if (!is_plan_file(path) || !is_profile_plan(read_plan(path))) return std::nullopt;
  if (!flags.strategy.empty() || !flags.trace.empty() || !flags.save.empty())
    fail_input("{}: a plan for a layer profile goes without --strategy, --trace and --save", path);
  flags.model.refuse_beside_plan();
  return simulate_profile_plan(path, flags.machine, flags.json, flags.tasks);
}

ExitCode run_simulate(const SimulateFlags& flags) {
  if (const auto done = simulate_profile(flags)) return *done;
  Subject subject = load_subject(flags);
  Pricing pricing = pricing_of(subject);
  subject.facts.provenance = pricing.provenance();
  fill_range(subject);
  const SimulatedStep step = [&] {
    Progress progress("simulating");
    pricing.watch(&progress);
    return simulate_step(subject.training, subject.strategy, subject.machine, pricing.cost(), {},
                         pricing.reprice());
  }();
  const SimulationReport report = report_simulation(step, &subject.training.graph, subject.machine,
                                                    std::move(subject.facts), flags.top);
  if (!flags.trace.empty()) save_trace(flags.trace, step, subject);
  if (!flags.save.empty())
    write_plan(plan_of(subject, step, report.failure ? kUnfitting : "given", "given", pricing),
               flags.save);
  const TaskListing listing = {step.tasks, subject.machine, &subject.training.graph};
  if (flags.tasks)
    fmt::print("{}", flags.json ? json_text(tasks_json(listing)) : tasks_text(listing));
  else if (flags.json)
    fmt::print("{}", json_text(with_packs(simulation_json(report, subject.machine), subject,
                                          pricing.cost(), false)));
  else
    fmt::print("{}{}{}", subject.strategy.packs ? packs_text(*subject.strategy.packs) + "\n" : "",
               simulation_text(report, flags.top),
               long_run_text_of(subject, pricing.cost(), false));
  return report.failure ? ExitCode::NoPlan : ExitCode::Done;
}

}  // namespace

void add_simulate(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "simulate",
      "What a training step costs under a strategy: time, bytes on every device and link.");
  auto flags = std::make_shared<SimulateFlags>();
  flags->model.add_to(*verb, ModelFlags::Runners::Any);
  flags->machine.add_to(
      *verb, "machine: preset such as 4x3090 or 8xa100-80g*4, \"local\", or a JSON file");
  verb->add_option("--strategy", flags->strategy,
                   "name with parameters, e.g. megatron:tp=8,pp=8,micro=1,recompute=full")
      ->type_name("SPEC");
  verb->add_option("--trace", flags->trace, "write the step as a trace for ui.perfetto.dev")
      ->type_name("FILE");
  verb->add_option(
          "--save", flags->save,
          "write the strategy as a plan file, marked if it does not fit; MODEL may be such a "
          "file")
      ->type_name("PLAN");
  verb->add_option("--top", flags->top, "how many devices, tensors and links to list")
      ->capture_default_str()
      ->check(positive_number());
  verb->add_flag(
      "--tasks", flags->tasks,
      "print the task graph instead: what each task does, where, and with which buffers");
  verb->add_flag("--json", flags->json, "print for programs");
  std::string names;
  for (std::string_view name : baseline_names())
    names += (names.empty() ? "" : ", ") + std::string(name);
  verb->footer(
      "Strategies: " + names +
      ".\n"
      "Parameters: dp, tp, pp, cp (parts of sequences), ep (of experts), interleave, micro\n"
      "  (samples), micro-batches, zero=0..3,\n"
      "  recompute=none|selective|full|sqrt, sequence-parallel, offload, host-weights, "
      "host-update.\n"
      "If the step does not fit, the exit code is 2 and the report says what is missing and what\n"
      "limit would do.\n"
      "Examples:\n"
      "  windlass simulate resnet-50 --on 4x3090 --strategy data-parallel --batch 256\n"
      "  windlass simulate gpt2-xl --on 4x1080ti --strategy 1f1b:stages=4,micro=1,recompute=full "
      "--batch 16\n"
      "  windlass simulate gpt3-175b --on '8xa100-80g*128' --batch 1024 --dtype bf16 \\\n"
      "      --strategy megatron:tp=8,pp=8,micro=1,recompute=full --trace step.json\n"
      "  windlass simulate gpt2 --on 4x3090 --batch 16 --strategy zero:stage=2 --save plan.json\n"
      "  windlass simulate plan.json --trace step.json\n"
      "  windlass simulate bert-large --on local --devices 2 --memory 8GiB \\\n"
      "      --strategy recompute-all --batch 8 --json");
  verb->callback([flags, &exit_code] { exit_code = run_simulate(*flags); });
}

}  // namespace windlass
