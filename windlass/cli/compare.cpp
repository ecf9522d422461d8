// `windlass compare`: what a user would have done, and what windlass finds, side by side.

#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"
#include "windlass/report/json.h"
#include "windlass/report/strategy_table.h"
#include "windlass/search/peers/peers.h"

namespace windlass {
namespace {

struct CompareFlags {
  ModelFlags model;
  MachineFlags machine;
  PriceCacheFlags prices;
  std::vector<std::string> strategies;
  SearchFlags search;
  bool searchers = false;
  bool json = false;
};

// What other systems' ways to search find in the same simulator.
void add_searchers(std::vector<StrategyRow>& rows, const Subject& subject,
                   const CompareFlags& flags, Pricing& pricing) {
  const Problem problem = {.network = subject.model.graph,
                           .machine = subject.machine,
                           .training = flags.model.request.training,
                           .cost = pricing.cost(),
                           .reprice = pricing.reprice()};
  for (std::string_view name : peer_names()) {
    StrategyRow row = {.name = fmt::format("{} (searched)", name)};
    try {
      const PeerResult found = search_as(name, problem, {.seed = flags.search.seed});
      row.fits = found.fits;
      row.step_time = found.step_time;
      row.peak = found.peak.value;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      row.why = error.message();
    }
    rows.push_back(std::move(row));
  }
}

ExitCode run_compare(const CompareFlags& flags) {
  if (flags.machine.machine.empty())
    fail_input("--on is missing: name a machine, e.g. --on 4x3090");
  MachineFlags named = flags.machine;
  const size_t devices = named.local_devices();
  named.threads = flags.search.threads > 0 ? flags.search.threads : default_threads(devices);
  const Runner& runner = flags.model.request.runner;
  Machine machine = machine_under(runner, named.load());
  Pricing pricing(measured_here(machine), named.threads, static_cast<int>(devices_here(machine)),
                  flags.prices, runner);
  const PlannedSubject planned =
      plan_subject(flags.model, std::move(machine), pricing, {.search = flags.search});
  const Subject& subject = planned.subject;
  StrategyRow found = {.name = "windlass"};
  found.fill(planned.step);
  Progress progress("comparing");
  pricing.watch(&progress);
  std::vector<StrategyRow> rows;
  for (const std::string& name : flags.strategies)
    rows.push_back(baseline_row(name, subject.model.graph, subject.machine,
                                flags.model.request.training, pricing));
  if (flags.strategies.empty()) rows = usual_rows(subject, pricing, progress);
  if (flags.searchers) add_searchers(rows, subject, flags, pricing);
  const int64_t samples = planned.search.samples;
  const ExitCode code = planned.fits ? ExitCode::Done : ExitCode::NoPlan;
  if (flags.json) {
    nlohmann::ordered_json json =
        strategy_table_json(rows, found, samples, planned.search.termination);
    json["runner"] = runner.name;
    fmt::print("{}", json_text(json));
    return code;
  }
  fmt::print("{}", strategy_table_text(rows, found, subject.machine, subject.facts));
  if (!planned.fits && planned.search.least_limit) {
    const std::string cut = time_cuts(planned.search.stages);
    fmt::print("no plan fits; the least limit that was found is {}{}\n",
               format_bytes(*planned.search.least_limit),
               cut.empty() ? cut : "; the time limit cut short: " + cut);
  }
  return code;
}

}  // namespace

void add_compare(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "compare",
      "What windlass finds beside what you would have done: time, memory, valid or not.");
  auto flags = std::make_shared<CompareFlags>();
  flags->model.add_to(*verb, ModelFlags::Runners::Any);
  flags->machine.add_to(*verb, "machine: \"local\", a preset or a JSON file");
  flags->prices.add_to(*verb);
  verb->add_option("--strategy", flags->strategies, "compare with these instead of the usual ones")
      ->type_name("SPEC");
  verb->add_option("--search", flags->search.method,
                   "how: auto, exact, grid, chain, mcmc, one-device, harmony")
      ->capture_default_str()
      ->type_name("METHOD");
  flags->search.add_to(*verb);
  verb->add_flag("--searchers", flags->searchers,
                 "and with what other systems' ways to search find: time-only, FlexFlow-, MemFlow- "
                 "and Unity-style");
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Times of strategies that do not fit are those they would take if they did. Strategies "
      "marked "
      "as\n"
      "tuned have the best settings that a grid of them has: micro-batches, stages of ZeRO, tensor "
      "parts\n"
      "and stages of a pipeline, recompute policies, what is on the host; --strategy takes such a "
      "name.\n"
      "Exit code 2 if windlass finds no plan that fits.\n"
      "Examples:\n"
      "  windlass compare gpt2-xl --batch 8 --on 4x3090\n"
      "  windlass compare bert-large --batch 32 --on 8x1080ti --memory 3GiB --json\n"
      "  windlass compare bert-large --batch 32 --on 4x1080ti --memory 40% --searchers\n"
      "  windlass compare resnet-50 --batch 64 --on 4x1080ti --strategy data-parallel "
      "zero:stage=2");
  verb->callback([flags, &exit_code] { exit_code = run_compare(*flags); });
}

}  // namespace windlass
