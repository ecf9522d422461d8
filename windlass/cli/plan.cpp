// `windlass plan`: the fastest way to train inside the limit that was found, or what it would take.

#include <algorithm>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/infeasible.h"
#include "windlass/cli/layer_graphs.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/pack_plans.h"
#include "windlass/cli/plan_frontier.h"
#include "windlass/cli/plan_layers.h"
#include "windlass/cli/planning.h"
#include "windlass/report/decisions.h"
#include "windlass/report/json.h"
#include "windlass/report/simulation_text.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct PlanFlags {
  ModelFlags model;
  MachineFlags machine;
  PriceCacheFlags prices;
  std::string output;
  SearchFlags search;
  std::string from;
  std::string target;  // whose settings it must be
  std::string cost = "windlass";
  PaseMachine pase;             // for PaSE's cost model
  std::string prefetch = "on";  // of Harmony's estimate
  std::string host_memory;
  bool frontier = false;
  std::vector<std::string> limits;  // of the frontier
  bool json = false;
  size_t top = 8;
};

void add_search(ordered_json& json, const PlannedSubject& planned) {
  const SearchResult& search = planned.search;
  auto& entry = json["search"] = {
      {"method", planned.method}, {"seconds", search.seconds.value}, {"simulated", search.tried}};
  if (planned.measuring) entry["measuring_seconds"] = planned.measuring->value;
  if (search.passed_over) entry["passed_over_s"] = search.passed_over->value;
  if (search.proposals > 0) json["search"]["proposals"] = search.proposals;
  if (search.objective) {
    entry["objective_s"] = search.objective->value;
    entry["objective_bound_s"] = search.objective_bound->value;
    entry["largest_table"] = search.largest_table;
    entry["shardings"] = search.options;
    entry["frontier_exact"] = search.frontier_exact;
    entry["frontier_resolution_bytes"] = search.frontier_resolution.value;
    entry["frontier_recompute"] = search.frontier_recompute;
    if (!search.recompute_left_out.empty())
      entry["frontier_recompute_left_out"] = search.recompute_left_out;
  }
  auto& stages = entry["stages"] = ordered_json::array();
  for (const StageEffort& stage : search.stages) {
    ordered_json line = {{"stage", stage.name},
                         {"simulated", stage.simulated},
                         {"units", stage.units},
                         {"complete", stage.complete}};
    if (!stage.complete) line["cut_by"] = stage.time_limit ? "time limit" : "effort";
    if (!stage.left_out.empty()) line["left_out"] = stage.left_out;
    stages.push_back(std::move(line));
  }
  if (search.frontier.empty()) return;
  auto& frontier = json["frontier"] = ordered_json::array();
  for (const FrontierPoint& point : search.frontier)
    frontier.push_back(
        {{"limit_bytes", point.limit.value}, {"step_time_s", point.step_time.value}});
}

// What was in the exact search's trade of time against bytes.
std::string trade_text(const SearchResult& search) {
  if (!search.objective || (!search.frontier_recompute && search.recompute_left_out.empty()))
    return "";
  const std::string how = search.frontier_exact
                              ? fmt::format("exact to {}", format_bytes(search.frontier_resolution))
                              : "its convex part";
  if (search.frontier_recompute)
    return fmt::format("  trade of time against memory: {}, single ops run again where it pays\n",
                       how);
  return fmt::format("  trade of time against memory: {}, without running single ops again ({})\n",
                     how, search.recompute_left_out);
}

// What a time limit has cut.
std::string cut_text(const SearchResult& search) {
  const std::string cut = time_cuts(search.stages);
  return cut.empty() ? cut : fmt::format("  the time limit cut short: {}\n", cut);
}

ExitCode print_infeasible(const PlanFlags& flags, const PlannedSubject& planned, Pricing& pricing) {
  const InfeasibleAnswer answer = answer_infeasible(
      {flags.machine, flags.host_memory, flags.search, flags.top, flags.target.empty()}, planned,
      pricing);
  if (flags.json) {
    ordered_json json = infeasible_json(answer);
    json["most_frugal"] =
        decisions_json(planned.subject.training, planned.subject.strategy, planned.subject.machine);
    add_search(json, planned);
    fmt::print("{}", json_text(json));
  } else {
    fmt::print("{}", infeasible_text(
                         answer, decisions_text(planned.subject.training, planned.subject.strategy,
                                                planned.subject.machine, false)));
  }
  return ExitCode::NoPlan;
}

// Of what has no ops there is one plan at a time.
void refuse_frontier(const PlanFlags& flags) {
  if (flags.frontier || !flags.limits.empty())
    fail_input("--frontier: is for networks, with windlass's costs; not for {}",
               flags.model.request.source);
}

// Graphs of layers have PaSE's costs and devices without names.
std::optional<ExitCode> plan_layer_graph(const PlanFlags& flags) {
  if (is_layer_profile_file(flags.model.request.source)) return std::nullopt;
  const auto graph = find_layer_graph(flags.model.request.source,
                                      flags.model.request.batch.value_or(0), flags.cost == "pase");
  if (!graph && flags.cost != "pase") return std::nullopt;
  if (!graph)
    fail_input(
        "--cost pase: \"{}\" is no graph of layers (an object with vertices and edges); give "
        "a graph file or pase:NAME",
        flags.model.request.source);
  if (flags.cost != "pase")
    fail_input("{}: a graph of layers has PaSE's costs only; add --cost pase",
               flags.model.request.source);
  if (flags.search.method != "auto" && flags.search.method != "exact")
    fail_input("--search {}: a graph of layers is searched exactly; use --search exact",
               flags.search.method);
  if (!flags.output.empty())
    fail_input("-o: PaSE's strategies name no devices and cannot be trained; use --json");
  refuse_frontier(flags);
  PlanGraphFlags graph_flags = {.machine = flags.pase,
                                .time_limit = flags.search.time_limit,
                                .threads = flags.search.threads,
                                .json = flags.json};
  if (!flags.machine.machine.empty())
    graph_flags.machine.devices = static_cast<int64_t>(flags.machine.load().devices.size());
  else if (!flags.machine.devices)
    fail_input("--devices is missing: how many devices share the graph?");
  else
    graph_flags.machine.devices = *flags.machine.devices;
  return run_plan_graph(*graph, graph_flags);
}

// Layer profiles, which have no ops, and Harmony's own estimate.
std::optional<ExitCode> plan_by_layers(const PlanFlags& flags) {
  const bool bare = is_layer_profile_file(flags.model.request.source);
  const bool estimate = flags.cost == "harmony";
  if (estimate && !bare && flags.search.method != "harmony")
    fail_input("--cost harmony: add --search harmony");
  if (!bare && !estimate) return std::nullopt;
  if (flags.search.method != "harmony" && flags.search.method != "auto")
    fail_input("--search {}: a layer profile is planned with --search harmony",
               flags.search.method);
  if (flags.model.request.training.clip_norm > 0)
    fail_unsupported("--clip: packs of layers update weights as their gradients come");
  refuse_frontier(flags);
  PlanLayersFlags layers = {
      .model = flags.model,
      .machine = flags.machine,
      .host_memory = flags.host_memory,
      .search = {.mode = flags.search.options().pack_mode, .prefetch = flags.prefetch == "on"},
      .output = flags.output,
      .json = flags.json};
  if (estimate) layers.search.cost = LayerCost::Harmony;
  return run_plan_layers(layers);
}

void save_plan(const PlanFlags& flags, const PlannedSubject& planned, Pricing& pricing) {
  Plan plan = plan_of(planned.subject, planned.step,
                      std::string(termination_name(planned.search.termination)), planned.method,
                      pricing, flags.search.seed);
  plan.prediction.frontier = planned.search.frontier;
  write_plan(plan, flags.output);
}

ExitCode plan_frontier(const PlanFlags& flags) {
  if (!flags.output.empty())
    fail_input("-o: a frontier is many plans; choose one, and plan it with --memory");
  if (!flags.from.empty()) fail_input("--from: a plan is of one number of devices; not a frontier");
  return run_plan_frontier({.model = flags.model,
                            .machine = flags.machine,
                            .search = flags.search,
                            .host_memory = flags.host_memory,
                            .limits = flags.limits,
                            .method = target_method(flags.target),
                            .json = flags.json});
}

ExitCode run_plan(const PlanFlags& flags) {
  if (const auto done = plan_layer_graph(flags)) return *done;
  if (const auto done = plan_by_layers(flags)) return *done;
  if (flags.machine.machine.empty()) fail_input("--on is missing: name a machine, e.g. --on local");
  if (flags.search.method == "harmony" && !is_windlass(flags.model.request.runner))
    fail_unsupported("--search harmony: packs of layers are windlass's own, not of {}",
                     flags.model.request.runner.name);
  if (!flags.target.empty() && flags.search.method != "auto")
    fail_input("--for {} is a search of its own; leave --search out", flags.target);
  if (!flags.target.empty() && flags.search.allow.compress() > 0)
    fail_unsupported("--allow compress: {} does not store activations in fewer bits", flags.target);
  if (flags.frontier) return plan_frontier(flags);
  if (!flags.limits.empty()) fail_input("--limits: is for --frontier");
  MachineFlags named = flags.machine;
  const size_t devices = named.local_devices();
  named.threads = flags.search.threads > 0 ? flags.search.threads : default_threads(devices);
  const Runner& runner = flags.model.request.runner;
  Machine machine = machine_under(runner, named.load());
  set_host_memory(machine, flags.host_memory);
  Pricing pricing(measured_here(machine), named.threads, static_cast<int>(devices_here(machine)),
                  flags.prices, runner);
  const PlannedSubject planned = plan_subject(
      flags.model, std::move(machine), pricing,
      {.search = flags.search, .from = flags.from, .method = target_method(flags.target)});
  const Subject& subject = planned.subject;
  if (!planned.fits) return print_infeasible(flags, planned, pricing);
  if (!flags.output.empty()) save_plan(flags, planned, pricing);
  const SimulationReport report = report_simulation(planned.step, &subject.training.graph,
                                                    subject.machine, subject.facts, flags.top);
  const double gap =
      1 - planned.search.lower_bound.value / std::max(1e-12, planned.search.step_time.value);
  if (flags.json) {
    ordered_json json = simulation_json(report, subject.machine);
    json["termination"] = termination_name(planned.search.termination);
    json["lower_bound_s"] = planned.search.lower_bound.value;
    json["gap"] = gap;
    json["decisions"] = decisions_json(subject.training, subject.strategy, subject.machine);
    add_search(json, planned);
    if (!runs_here(subject.machine) && flags.host_memory.empty())
      json["host_reserve_percent"] = flags.machine.host_reserve;
    if (!flags.output.empty()) json["plan"] = flags.output;
    fmt::print("{}", json_text(with_packs(std::move(json), subject, pricing.cost(), true)));
    return ExitCode::Done;
  }
  fmt::print(
      "plan ({}; no plan is faster than {}, {:.0f} % of this step; {} strategies tried in "
      "{}{})\n{}\n",
      termination_name(planned.search.termination), format_seconds(planned.search.lower_bound),
      100 * (1 - gap), planned.search.tried, format_seconds(planned.search.seconds),
      planned.measuring
          ? fmt::format(", {} of it to measure kernels", format_seconds(*planned.measuring))
          : "",
      decisions_text(subject.training, subject.strategy, subject.machine, true));
  if (planned.search.passed_over)
    fmt::print(
        "  packs of layers would take {}: no more than noise, so the simpler plan is taken\n",
        format_seconds(*planned.search.passed_over));
  if (subject.request.expert_capacity > 0)
    fmt::print(
        "  rows of experts are in slots, {} times an even share: a step that needs more ends with "
        "an error (--expert-capacity)\n",
        subject.request.expert_capacity);
  fmt::print("{}", cut_text(planned.search));
  if (planned.search.objective)
    fmt::print("  sum of all times {}, proven least to {:.2f} %; the rest is overlap and order\n{}",
               format_seconds(*planned.search.objective),
               100 * (1 - planned.search.objective_bound->value /
                              std::max(1e-12, planned.search.objective->value)),
               splits_text(subject.training, subject.strategy));
  fmt::print("{}{}{}{}", trade_text(planned.search), simulation_text(report, flags.top),
             long_run_text_of(subject, pricing.cost(), true),
             frontier_text(planned.search.frontier));
  if (!runs_here(subject.machine) && flags.host_memory.empty())
    fmt::print("\nhost memory: {} of each host, {:g} % kept back (--host-reserve)\n",
               format_bytes(subject.machine.nodes[0].memory), flags.machine.host_reserve);
  const bool trains = runs_here(subject.machine) && is_windlass(runner);
  if (!flags.output.empty() && !flags.target.empty())
    fmt::print("\nwritten to {}; take it along with: windlass export {} --to {}\n", flags.output,
               flags.output, flags.target);
  else if (!flags.output.empty())
    fmt::print("\nwritten to {}; {}: windlass {} {}\n", flags.output,
               trains ? "train it with" : "why it is so", trains ? "train --data FILE" : "explain",
               flags.output);
  return ExitCode::Done;
}

}  // namespace

void add_plan(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "plan", "The fastest way to train a model inside a memory limit, or what it would take.");
  auto flags = std::make_shared<PlanFlags>();
  flags->model.add_to(*verb, ModelFlags::Runners::Any);
  flags->machine.add_to(*verb, "machine: \"local\", a preset or a JSON file");
  flags->prices.add_to(*verb);
  verb->add_option("-o,--output", flags->output, "write the plan to a file")->type_name("PLAN");
  verb->add_option("--search", flags->search.method,
                   "how: auto, exact, grid, chain, mcmc, one-device, harmony")
      ->capture_default_str()
      ->type_name("METHOD");
  verb->add_option("--for", flags->target,
                   "only what this system can be told: " + join(search_targets(), ", "))
      ->check(CLI::IsMember(search_targets()))
      ->type_name("SYSTEM");
  verb->add_option("--cost", flags->cost,
                   "whose costs: windlass; pase for graphs of layers; harmony for packs of layers")
      ->capture_default_str()
      ->check(CLI::IsMember({"windlass", "pase", "harmony"}));
  verb->add_option("--mode", flags->search.mode, "of packs of layers: dp, pp or auto")
      ->capture_default_str()
      ->check(CLI::IsMember({"dp", "pp", "auto"}));
  verb->add_option("--prefetch", flags->prefetch, "of --cost harmony: on or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  verb->add_option("--host-memory", flags->host_memory,
                   "of each node, all of it, instead of the machine's")
      ->type_name("BYTES");
  verb->add_option("--pase-teraflops", flags->pase.teraflops, "of a device, for --cost pase")
      ->capture_default_str()
      ->check(number_in(1e-6, 1e9));
  verb->add_option("--pase-bandwidth", flags->pase.gigabytes, "GB/s of a link, for --cost pase")
      ->capture_default_str()
      ->check(number_in(1e-6, 1e9));
  flags->search.add_to(*verb);
  verb->add_flag(
      "--frontier", flags->frontier,
      "the best plan for 1, 2, 4, ... devices and each of some limits, by figures of "
      "the machine:\nhow many cards it takes, and of which size; effort quick unless given");
  verb->add_option("--limits", flags->limits,
                   "with --frontier: of each device, e.g. 16GiB 24GiB 80% (default: quarters of "
                   "what it has)")
      ->type_name("BYTES");
  verb->add_option("--from", flags->from, "start from the strategy of another plan of this model")
      ->type_name("PLAN");
  verb->add_option("--top", flags->top, "how many tensors and links to list")
      ->capture_default_str()
      ->check(positive_number());
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "On \"local\" every kernel of the model is run once to measure its time and workspace, so "
      "that\n"
      "the prediction is of the kernels that train. For one device: what is kept, recomputed or "
      "moved\n"
      "to host memory, where weights and optimizer state live, and how the batch is cut. For "
      "several:\n"
      "groups of devices, how each op is split over them, what is kept, recomputed or moved, all\n"
      "together: dynamic programming, exact search, and Markov chains on the simulator. Where "
      "weights\n"
      "do not fit into device memory, packs of layers that pass through the devices (--search "
      "harmony).\n"
      "Ctrl-C returns the best so far. The same --seed gives the same plan.\n"
      "If nothing fits, the exit code is 2 and the answer is the least limit that would do, what "
      "is\n"
      "alive where memory runs out, and what helps, each change searched for a short time.\n"
      "Examples:\n"
      "  windlass plan gpt2 --batch 4 --on local --memory 2GiB -o plan.json\n"
      "  windlass plan resnet-50 --batch 16 --on local --memory 600MiB --link-bandwidth 12GB/s\n"
      "  windlass plan gpt2-xl --batch 16 --on 4x3090 --memory 80% -o plan.json\n"
      "  windlass plan gpt2-xl --batch 16 --on 4x3090 --from plan.json --effort thorough\n"
      "  windlass plan bert-large --batch max --on 4x1080ti\n"
      "  windlass plan bert-large --batch 64 --on 8x1080ti --fix tp=2,recompute=off\n"
      "  windlass plan gpt2-xl --batch 16 --on 8xa100-80g --frontier --limits 16GiB 24GiB 80GiB\n"
      "  windlass plan gpt2-xl --batch 16 --on 4x3090 --for megatron -o plan.json\n"
      "  windlass plan inception-v3 --batch 128 --on 8x1080ti --search exact\n"
      "  windlass plan gpt2-xl --batch 16 --on 4x1080ti --search harmony\n"
      "  windlass plan profile.json --batch 16 --on 4x1080ti --search harmony --cost harmony\n"
      "  windlass plan pase:transformer --search exact --cost pase --devices 64 --json\n"
      "  windlass train plan.json --data text.txt --steps 100");
  verb->callback([flags, verb, &exit_code] {
    if (flags->frontier && verb->count("--effort") == 0) flags->search.effort = "quick";
    exit_code = run_plan(*flags);
  });
}

}  // namespace windlass
