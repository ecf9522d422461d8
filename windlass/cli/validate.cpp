// `windlass validate`: published tables beside the figures of the analytic model.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/validate_search.h"
#include "windlass/report/json.h"
#include "windlass/report/validation.h"
#include "windlass/sweep/sweep.h"

namespace windlass {
namespace {

struct ValidateFlags {
  std::string only;
  bool measured = false, full = false;
  int64_t steps = 5;
  int64_t rounds = 3;
  std::optional<double> minutes;
  std::string link_bandwidth = "2GB/s";
  bool json = false;
  size_t threads = 0;
};

std::vector<ValidationTable> select_tables(const std::string& only) {
  std::vector<ValidationTable> tables;
  std::vector<std::string> names;
  for (const ValidationText& text : validation_texts()) {
    names.emplace_back(text.name);
    if (text.name == kSearchTable) continue;
    ValidationTable table = read_validation(text.name, text.text);
    // A name of a table, or a part of the labels of rows.
    if (!only.empty() && text.name != only) {
      std::erase_if(table.rows, [&](const ValidationRow& row) {
        return row.label.find(only) != 0 && !matches_glob(row.label, only);
      });
    }
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  if (tables.empty() && only != kSearchTable)
    fail_input("--only {}: no table and no row is called so{}; there are the tables {}", only,
               did_you_mean(only, names), join(names, ", "));
  return tables;
}

std::optional<SpeedupTable> select_speedups(const std::string& only) {
  if (!only.empty() && only != kSearchTable) return std::nullopt;
  for (const ValidationText& text : validation_texts())
    if (text.name == kSearchTable) return read_speedups(text.name, text.text);
  return std::nullopt;
}

std::string figure_text(double value) {
  return value < 10 ? fmt::format("{:.2f}", value)
                    : fmt::format("{:.{}f}", value, value < 1000 ? 1 : 0);
}

std::string verdict(const ValidationTable& table) {
  std::string bars;
  if (table.bar_mean > 0) bars += fmt::format("mean < {:.0f} %", 100 * table.bar_mean);
  if (table.bar_max > 0)
    bars += fmt::format("{}max < {:.0f} %", bars.empty() ? "" : ", ", 100 * table.bar_max);
  return fmt::format("{} ({})", table.passed() ? "PASS" : "FAIL", bars);
}

void print_tables(const std::vector<ValidationTable>& tables) {
  for (const ValidationTable& table : tables) {
    fmt::print("{}: {}, {}\n", table.name, table.title, table.unit);
    fmt::print("  {}\n", table.source);
    if (!table.note.empty()) fmt::print("  {}\n", table.note);
    Table rows({Align::Left, Align::Right, Align::Right, Align::Right});
    rows.add({"", "windlass", "published", "error"});
    for (const ValidationRow& row : table.rows)
      rows.add({row.label, figure_text(row.predicted), figure_text(row.published),
                fmt::format("{:+.1f} %", 100 * row.error())});
    fmt::print("{}", rows.text("  "));
    fmt::print("  mean {:.2f} %, max {:.2f} %: {}\n\n", 100 * table.mean_error(),
               100 * table.max_error(), verdict(table));
  }
  if (tables.empty()) return;
  const auto passed = std::count_if(tables.begin(), tables.end(),
                                    [](const ValidationTable& table) { return table.passed(); });
  fmt::print(
      "{} of {} tables within their bars; all by the analytic cost model, one set of "
      "constants\n",
      passed, tables.size());
}

nlohmann::ordered_json to_json(const std::vector<ValidationTable>& tables) {
  nlohmann::ordered_json json;
  json["passed"] = std::all_of(tables.begin(), tables.end(),
                               [](const ValidationTable& table) { return table.passed(); });
  auto& list = json["tables"] = nlohmann::ordered_json::array();
  for (const ValidationTable& table : tables) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const ValidationRow& row : table.rows)
      rows.push_back({{"label", row.label},
                      {"predicted", row.predicted},
                      {"published", row.published},
                      {"error", row.error()}});
    list.push_back({{"name", table.name},
                    {"title", table.title},
                    {"source", table.source},
                    {"note", table.note},
                    {"unit", table.unit},
                    {"mean_error", table.mean_error()},
                    {"max_error", table.max_error()},
                    {"bar_mean", table.bar_mean},
                    {"bar_max", table.bar_max},
                    {"passed", table.passed()},
                    {"rows", std::move(rows)}});
  }
  return json;
}

ExitCode run_measured(const ValidateFlags& flags) {
  const InterruptScope interrupts;
  Progress progress("measuring steps");
  const auto begin = std::chrono::steady_clock::now();
  const auto late = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    return flags.minutes && spent.count() > 60 * *flags.minutes;
  };
  bool cut = false;
  MachineFlags here;
  here.machine = "local";
  here.devices = 1;
  here.threads = std::max(1, static_cast<int>(flags.threads));
  here.link_bandwidth = flags.link_bandwidth;
  MeasuredSweep sweep =
      run_sweep({.machine = here.load(),
                 .full = flags.full,
                 .only = flags.only,
                 .threads = here.threads,
                 .steps = flags.steps,
                 .rounds = flags.rounds,
                 .stop = [&] { return cut = cut || InterruptScope::interrupted() || late(); },
                 .progress =
                     [&](const std::string& what, double done) {
                       progress.show(fmt::format("{} {}", Progress::bar(done), what));
                     }});
  sweep.machine += ", link of " + flags.link_bandwidth;
  if (cut) fmt::print(stderr, "note: stopped before all was measured; what there is follows\n");
  fmt::print("{}", flags.json ? json_text(sweep_json(sweep)) : sweep_text(sweep));
  const bool any = std::ranges::any_of(
      sweep.models, [](const SweepModel& model) { return !model.groups.empty(); });
  const bool passed = any && std::ranges::all_of(sweep.models, [](const SweepModel& model) {
                        return std::ranges::all_of(model.groups, MeasuredSweep::passed);
                      });
  return passed ? ExitCode::Done : ExitCode::RunFailed;
}

ExitCode run_validate(const ValidateFlags& flags) {
  if (flags.measured) return run_measured(flags);
  if (flags.full) fail_input("--full: is for --measured");
  if (flags.minutes) fail_input("--minutes: is for --measured");
  std::vector<ValidationTable> tables = select_tables(flags.only);
  // Each simulation of the largest rows takes about 1 GB.
  const size_t cores = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 4);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  run_validation(tables, flags.threads > 0 ? flags.threads : cores, [&](size_t done, size_t all) {
    if (terminal) fmt::print(stderr, "\rsimulated {} of {} steps", done, all);
  });
  std::optional<SpeedupTable> speedups = select_speedups(flags.only);
  if (speedups)
    run_speedups(*speedups, [&](size_t done, size_t all) {
      if (terminal) fmt::print(stderr, "\rsearched {} of {} strategies ", done, all);
    });
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  const bool passed = std::all_of(tables.begin(), tables.end(),
                                  [](const ValidationTable& table) { return table.passed(); }) &&
                      (!speedups || speedups->passed());
  if (flags.json) {
    nlohmann::ordered_json json = to_json(tables);
    json["passed"] = passed;
    if (speedups) json["tables"].push_back(speedup_json(*speedups));
    fmt::print("{}\n", json.dump(2));
  } else {
    if (speedups) fmt::print("{}", speedup_text(*speedups));
    print_tables(tables);
  }
  return passed ? ExitCode::Done : ExitCode::RunFailed;
}

}  // namespace

void add_validate(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "validate",
      "Published tables of large training runs, or steps of this host, beside windlass's "
      "own figures.");
  auto flags = std::make_shared<ValidateFlags>();
  verb->add_option("--only", flags->only,
                   "one table (iteration-time), or the rows whose label begins so (22B)")
      ->type_name("NAME");
  verb->add_flag("--measured", flags->measured,
                 "instead of tables: steps of small models, predicted and then run on this host");
  verb->add_flag("--full", flags->full,
                 "with --measured: ResNet-50, Wide-ResNet, BERT, ViT and GPT-2");
  verb->add_option("--steps", flags->steps,
                   "with --measured: steps that are timed for a point in a round")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  verb->add_option("--rounds", flags->rounds,
                   "with --measured: times that all kernels, and then all points of a model, are "
                   "measured")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{100}));
  verb->add_option("--minutes", flags->minutes,
                   "with --measured: nothing new is begun after that; what there is by then is "
                   "reported")
      ->check(number_in(0, 1e6));
  verb->add_option("--link-bandwidth", flags->link_bandwidth,
                   "with --measured: of the imitated link to host memory")
      ->capture_default_str();
  verb->add_option("--threads", flags->threads,
                   "simulations side by side (default: one a core); with --measured threads of "
                   "kernels (default: 1)")
      ->check(CLI::Range(1, 64));
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Exit code 3 if a table, or a group of measured steps, is outside of its bars.\n"
      "--measured: the plain step is profiled at two batches; from that alone follow peak and\n"
      "throughput of plain training, recomputation, offload, compression to 4 bits and the best "
      "mixture at\n"
      "six batches, which are then carried out. The bars: R2 of peaks 0.999, of throughput 0.97, "
      "mean error of\n"
      "throughput below 8 %, in each group. What else runs on the host counts against them.\n"
      "Examples:\n"
      "  windlass validate\n"
      "  windlass validate --only iteration-time\n"
      "  windlass validate --only search-speedup\n"
      "  windlass validate --only 22B --json\n"
      "  windlass validate --measured\n"
      "  windlass validate --measured --full --minutes 20 --json");
  verb->callback([flags, &exit_code] { exit_code = run_validate(*flags); });
}

}  // namespace windlass
