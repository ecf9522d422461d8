// `windlass report`: a plan as one page for a browser.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/plan_methods.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/progress.h"
#include "windlass/report/json.h"
#include "windlass/report/page/page.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct ReportFlags {
  std::string plan, compare, run;
  std::string output;
  bool no_baselines = false;
  bool json = false;
};

// Beyond this a run is no log of steps.
constexpr std::streamoff kMostRunBytes = std::streamoff{256} << 20;

std::string text_of_run(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored))
    fail_input("--run {}: cannot be read", path);
  std::string text;
  std::string piece(1 << 16, '\0');
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    text.append(piece, 0, static_cast<size_t>(file.gcount()));
    if (static_cast<std::streamoff>(text.size()) > kMostRunBytes)
      fail_input("--run {}: is larger than {}", path, format_bytes(Bytes(kMostRunBytes)));
  }
  return text;
}

// What the page shows of a plan file. `alone`: it has the page to itself.
ordered_json plan_json(const std::string& path, bool baselines, bool alone) {
  if (!is_plan_file(path))
    fail_input("{}: is no plan file; make one with \"windlass plan MODEL --on MACHINE -o {}\"",
               path, "plan.json");
  Subject subject = subject_from_plan(path, {}, ForWhom::AnyRunner);
  Pricing pricing = pricing_of(subject);
  subject.facts.provenance = pricing.provenance();
  Progress progress("reporting");
  pricing.watch(&progress);
  const SimulatedStep step = simulate_step(subject.training, subject.strategy, subject.machine,
                                           pricing.cost(), {}, pricing.reprice());
  constexpr size_t kLargest = 12;
  const SimulationReport report =
      report_simulation(step, &subject.training.graph, subject.machine, subject.facts, kLargest);
  PagePlan page = {.path = std::filesystem::path(path).filename().string(),
                   .plan = *subject.plan,
                   .network = subject.model.graph,
                   .training = subject.training,
                   .strategy = subject.strategy,
                   .machine = subject.machine,
                   .step = step,
                   .report = report};
  if (alone && baselines) {
    PlanMethods beside = methods_beside(subject, pricing, progress);
    page.methods = std::move(beside.report);
    page.no_methods = std::move(beside.why_not);
  }
  if (!baselines)
    page.no_baselines = "left out by --no-baselines";
  else if (pricing.reprice())
    page.no_baselines =
        "not shown: prices are of kernels measured here, and usual strategies have others; "
        "\"windlass compare\" measures them";
  else
    page.baselines = usual_rows(subject, pricing, progress);
  PageOptions options;
  if (!alone) options.timeline.most_slices /= 2;
  return page_plan_json(page, options);
}

ExitCode run_report(const ReportFlags& flags) {
  std::string output = flags.output;
  if (output.empty())
    output = std::filesystem::path(flags.plan).replace_extension(".html").string();
  std::optional<ordered_json> run;
  if (!flags.run.empty()) run = page_run_json(text_of_run(flags.run), "--run " + flags.run);
  ordered_json plans = ordered_json::array();
  const bool alone = flags.compare.empty();
  plans.push_back(plan_json(flags.plan, !flags.no_baselines, alone));
  if (!alone) plans.push_back(plan_json(flags.compare, false, alone));
  const std::string html = page_html(plans, run);
  AtomicFile file(output);
  file.write(html);
  file.commit();
  if (flags.json) {
    ordered_json json = {{"report", output}, {"bytes", html.size()}};
    for (const ordered_json& plan : plans)
      json["plans"].push_back({{"plan", plan["path"]},
                               {"fits", plan["fits"]},
                               {"verdict", plan["verdict"]},
                               {"step_time_s", plan["step_time"]}});
    fmt::print("{}", json_text(json));
  } else {
    fmt::print("{}\nwritten to {} ({}); open it in a browser\n",
               printable(plans[0]["verdict"].get<std::string>()), output,
               format_bytes(Bytes(static_cast<int64_t>(html.size()))));
  }
  return ExitCode::Done;
}

}  // namespace

void add_report(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "report", "A plan as one HTML page: verdict, time, memory, timeline, strategy, links.");
  auto flags = std::make_shared<ReportFlags>();
  verb->add_option("PLAN", flags->plan, "plan file")->required();
  verb->add_option("-o,--output", flags->output, "page to write; default: PLAN with .html")
      ->type_name("FILE.html");
  verb->add_option("--compare", flags->compare, "show another plan beside it")->type_name("PLAN");
  verb->add_option(
          "--run", flags->run,
          "a run of it, as \"windlass train --json\" printed it: predicted beside measured")
      ->type_name("FILE");
  verb->add_flag("--no-baselines", flags->no_baselines,
                 "do not simulate what a user would have done, nor memory methods by batch, which "
                 "takes a few\nseconds");
  verb->add_flag("--json", flags->json, "print what was written for programs");
  verb->footer(
      "The page is one file: it loads nothing, works without a network and opens from disk. A plan "
      "that\n"
      "does not fit is shown as it would run without limits, with what is missing.\n"
      "Examples:\n"
      "  windlass plan gpt2-xl --batch 8 --on 4x3090 -o plan.json\n"
      "  windlass report plan.json -o report.html\n"
      "  windlass simulate gpt2-xl --batch 8 --on 4x3090 --strategy zero:stage=3 --save zero.json\n"
      "  windlass report plan.json --compare zero.json -o both.html\n"
      "  windlass plan gpt2:layers=2,hidden=64,heads=4,vocab=256 --seq 64 --batch 8 --on local -o "
      "mine.json\n"
      "  windlass train mine.json --data text.txt --steps 20 --json > run.jsonl\n"
      "  windlass report mine.json --run run.jsonl -o run.html");
  verb->callback([flags, &exit_code] { exit_code = run_report(*flags); });
}

}  // namespace windlass
