// `windlass check`: whether a plan is what it says, found without the simulator or the search.

#include "windlass/plan/check.h"

#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/subject.h"
#include "windlass/report/json.h"
#include "windlass/sim/reference/naive.h"
#include "windlass/sim/timeline_check.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

struct CheckFlags {
  std::string plan;
  MachineFlags machine;
  bool json = false;
};

ExitCode run_check(const CheckFlags& flags) {
  if (is_profile_plan(read_plan(flags.plan)))
    return check_profile_plan(flags.plan, flags.machine, flags.json);
  const Subject subject = subject_from_plan(flags.plan, flags.machine, ForWhom::AnyRunner);
  Pricing pricing = pricing_of(subject);
  const TaskGraph tasks = lower(subject.training, subject.strategy, subject.machine);
  TaskTimes times = price_tasks(tasks, subject.machine, pricing.cost());
  const Reprice reprice = pricing.reprice();
  if (reprice) reprice(subject.training, tasks, times);
  std::vector<std::string> findings =
      check_tasks(subject.training, subject.machine, subject.strategy, tasks);
  const bool too_large = subject.plan->prediction.termination == kUnfitting;
  const SimResult result = simulate_naively(tasks, times, {.enforce_limits = !too_large});
  Seconds overhead;
  for (const Team& team : tasks.teams)
    overhead =
        std::max(overhead, pricing.cost().step_overhead(subject.machine.device_types[team.type]));
  const auto add = [&](std::vector<std::string> more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  if (!too_large) {
    add(check_run(tasks, times, result));
  } else {
    add(check_timeline(tasks, times, result));
    if (simulate_naively(tasks, times).status == SimStatus::Done)
      findings.emplace_back("the plan is marked as one that does not fit, but it fits");
  }
  if (result.status == SimStatus::Done)
    add(check_prediction(subject.plan->prediction, subject.machine, tasks, result, overhead));
  if (flags.json) {
    const nlohmann::ordered_json json = {{"valid", findings.empty()},
                                         {"fits", !too_large},
                                         {"runner", subject.request.runner.name},
                                         {"tasks", tasks.size()},
                                         {"findings", findings}};
    fmt::print("{}", json_text(json));
  } else if (findings.empty()) {
    fmt::print(
        "{}: valid; {} tasks, each op of each sample once, each gradient reduced once, "
        "peaks as promised{}{}\n",
        flags.plan, tasks.size(),
        is_windlass(subject.request.runner) ? "" : ", run by " + subject.request.runner.name,
        too_large ? "; but it does not fit" : "");
  } else {
    fmt::print("{}: not valid\n", flags.plan);
    for (const std::string& finding : findings) fmt::print("  {}\n", finding);
  }
  if (!findings.empty()) return ExitCode::BadInput;
  return too_large ? ExitCode::NoPlan : ExitCode::Done;
}

}  // namespace

void add_check(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb =
      program.add_subcommand("check", "Whether a plan file is legal and keeps what it promises.");
  auto flags = std::make_shared<CheckFlags>();
  verb->add_option("PLAN", flags->plan, "plan file, as simulate --save writes it")->required();
  verb->add_option("--on", flags->machine.machine,
                   "machine that must be the plan's own: preset or JSON file")
      ->type_name("MACHINE");
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Derives again, without the simulator: that the strategy is legal, that every op of every\n"
      "sample is computed once, every gradient reduced once, every read follows its write, and "
      "the\n"
      "peak of every memory. Exit code 1 and a list of findings if something is wrong, 2 if the "
      "plan\n"
      "is marked as one that does not fit and all else is right.\n"
      "Examples:\n"
      "  windlass simulate gpt2 --on 4x3090 --batch 16 --strategy zero:stage=2 --save plan.json\n"
      "  windlass check plan.json");
  verb->callback([flags, &exit_code] { exit_code = run_check(*flags); });
}

}  // namespace windlass
