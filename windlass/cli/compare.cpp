// `windlass compare`: what a user would have done, and what windlass finds, side by side.

#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"
#include "windlass/machine/device_names.h"
#include "windlass/report/simulation.h"
#include "windlass/search/peers/peers.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct CompareFlags {
  ModelFlags model;
  MachineFlags machine;
  std::vector<std::string> strategies;
  SearchFlags search;
  bool searchers = false;
  bool json = false;
};

// One strategy: its step without limits, and whether it fits.
struct Row {
  std::string name;
  std::string why;  // it is not possible; empty if it is
  bool fits = false;
  Seconds step_time;
  int64_t peak = 0;       // bytes of the fullest device
  int64_t host_peak = 0;  // of the fullest host
};

void fill(Row& row, const SimulatedStep& step) {
  row.fits = step.result.status == SimStatus::Done;
  row.step_time = step.step_time();
  for (size_t m = 0; m < step.tasks.memories.size(); ++m) {
    const int64_t bytes = step.whole().peaks[m].bytes;
    int64_t& peak = step.tasks.memories[m].team.valid() ? row.peak : row.host_peak;
    peak = std::max(peak, bytes);
  }
}

Row row_of(const std::string& name, const Graph& graph, const Machine& machine,
           const TrainingOptions& training, Pricing& pricing) {
  Row row;
  row.name = name;
  try {
    const PreparedStep step = prepare_step(graph, parse_baseline(name), machine, training);
    fill(row, simulate_step(step.training, step.strategy, machine, pricing.cost(), {},
                            pricing.reprice()));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    row.why = error.message();
  }
  return row;
}

// What users of a machine with so many devices try.
std::vector<std::string> usual_strategies(size_t devices) {
  if (devices == 1)
    return {"single",
            "single:recompute=full",
            "recompute-sqrt",
            "offload-all",
            "single:host-update=on",
            "single:host-weights=on,host-update=on,recompute=full",
            "lru"};
  std::vector<std::string> names = {"data-parallel", "zero:stage=1",   "zero:stage=2",
                                    "zero:stage=3",  "recompute-all",  "recompute-sqrt",
                                    "offload-all",   "one-weird-trick"};
  for (size_t tp = 2; tp <= std::min<size_t>(8, devices); tp *= 2)
    if (devices % tp == 0) names.push_back(fmt::format("megatron:tp={}", tp));
  for (size_t stages = 2; stages <= std::min<size_t>(8, devices); stages *= 2)
    if (devices % stages == 0) {
      names.push_back(fmt::format("gpipe:stages={}", stages));
      names.push_back(fmt::format("1f1b:stages={}", stages));
    }
  names.push_back("zero:stage=3,recompute=full,host-update=on");
  names.push_back("lru");
  return names;
}

ordered_json to_json(const std::vector<Row>& rows, const Row& found, int64_t samples,
                     const SearchResult& search) {
  const auto entry = [&](const Row& row) {
    ordered_json json = {{"strategy", row.name}, {"possible", row.why.empty()}};
    if (!row.why.empty()) {
      json["reason"] = row.why;
      return json;
    }
    json["valid"] = row.fits;
    json["step_time_s"] = row.step_time.value;
    json["samples_per_s"] = static_cast<double>(samples) / row.step_time.value;
    json["peak_bytes"] = row.peak;
    json["host_peak_bytes"] = row.host_peak;
    return json;
  };
  ordered_json json;
  json["termination"] = termination_name(search.termination);
  json["windlass"] = entry(found);
  auto& list = json["strategies"] = ordered_json::array();
  for (const Row& row : rows) list.push_back(entry(row));
  return json;
}

// What other systems' ways to search find in the same simulator.
void add_searchers(std::vector<Row>& rows, const Subject& subject, const CompareFlags& flags,
                   Pricing& pricing) {
  const Problem problem = {.network = subject.model.graph,
                           .machine = subject.machine,
                           .training = flags.model.request.training,
                           .cost = pricing.cost(),
                           .reprice = pricing.reprice()};
  for (std::string_view name : peer_names()) {
    Row row;
    row.name = fmt::format("{} (searched)", name);
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
  const auto devices = static_cast<size_t>(std::max<int64_t>(1, named.devices.value_or(1)));
  named.threads = flags.search.threads > 0 ? flags.search.threads : default_threads(devices);
  Machine machine = named.load();
  Pricing pricing(runs_here(machine), named.threads);
  const PlannedSubject planned =
      plan_subject(flags.model, std::move(machine), pricing, {.search = flags.search});
  const Subject& subject = planned.subject;
  Row found;
  found.name = "windlass";
  fill(found, planned.step);
  std::vector<Row> rows;
  const std::vector<std::string> names = flags.strategies.empty()
                                             ? usual_strategies(subject.machine.devices.size())
                                             : flags.strategies;
  for (const std::string& name : names)
    rows.push_back(
        row_of(name, subject.model.graph, subject.machine, flags.model.request.training, pricing));
  if (flags.searchers) add_searchers(rows, subject, flags, pricing);
  const int64_t samples = planned.search.samples;
  const ExitCode code = planned.fits ? ExitCode::Done : ExitCode::NoPlan;
  if (flags.json) {
    fmt::print("{}\n", to_json(rows, found, samples, planned.search)
                           .dump(2, ' ', false, ordered_json::error_handler_t::replace));
    return code;
  }
  fmt::print("{} on {}, {} samples a step, {} a device; simulated, {}\n",
             flags.model.request.source, subject.machine.name, samples, limit_text(subject.machine),
             pricing.provenance());
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Left});
  table.add({"", "step", "samples/s", "peak", "against windlass", ""});
  const auto add = [&](const Row& row) {
    if (!row.why.empty()) return table.add({row.name, "-", "-", "-", "-", row.why});
    table.add({row.name, format_seconds(row.step_time),
               fmt::format("{:.2f}", static_cast<double>(samples) / row.step_time.value),
               format_bytes(Bytes(row.peak)),
               fmt::format("{:.2f}x", row.step_time / found.step_time),
               row.fits ? "" : "does not fit"});
  };
  add(found);
  for (const Row& row : rows) add(row);
  fmt::print("{}", table.text("  "));
  if (!planned.fits && planned.search.least_limit)
    fmt::print("no plan fits; the least limit that was found is {}\n",
               format_bytes(*planned.search.least_limit));
  return code;
}

}  // namespace

void add_compare(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "compare",
      "What windlass finds beside what you would have done: time, memory, valid or not.");
  auto flags = std::make_shared<CompareFlags>();
  flags->model.add_to(*verb);
  verb->add_option("--on", flags->machine.machine, "machine: \"local\", a preset or a JSON file")
      ->type_name("MACHINE");
  flags->machine.add_to(*verb);
  verb->add_option("--strategy", flags->strategies, "compare with these instead of the usual ones")
      ->type_name("SPEC");
  verb->add_option("--search", flags->search.method,
                   "how: auto, exact, grid, chain, mcmc, one-device")
      ->capture_default_str()
      ->type_name("METHOD");
  flags->search.add_to(*verb);
  verb->add_flag("--searchers", flags->searchers,
                 "and with what other systems' ways to search find: time-only, FlexFlow-, MemFlow- "
                 "and Unity-style");
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Times of strategies that do not fit are those they would take if they did.\n"
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
