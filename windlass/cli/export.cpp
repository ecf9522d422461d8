// `windlass export`: plans and problems in the formats of other programs.

#include <cstdio>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/layer_graphs.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/subject.h"
#include "windlass/export/exporters.h"
#include "windlass/export/torch_script.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/report/json.h"
#include "windlass/report/trace.h"
#include "windlass/run/step_calibration.h"
#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct ExportFlags {
  ModelFlags model;
  MachineFlags machine;
  std::string format;
  std::string output;
  bool json = false;
};

CostNetwork sharding_network(const ExportFlags& flags) {
  if (flags.machine.machine.empty())
    fail_input("--on is missing: name the machine, e.g. --on 4x3090");
  const Machine machine = flags.machine.load();
  const Model model = load_model(flags.model.model());
  const TrainingGraph training = differentiate(model.graph, flags.model.request.training);
  const auto cost = analytic_cost_model();
  return weighted(make_sharding_problem(training, machine, *cost).network(), {});
}

void write_out(const ExportFlags& flags, const std::string& text) {
  if (flags.output.empty()) {
    if (!flags.json) std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  AtomicFile file(flags.output);
  file.write(text);
  file.commit();
}

void export_problem(const ExportFlags& flags) {
  CostNetwork network;
  if (const auto graph =
          find_layer_graph(flags.model.request.source, flags.model.request.batch.value_or(0))) {
    if (!flags.machine.devices)
      fail_input("--devices is missing: how many devices share the graph?");
    network = make_pase_problem(*graph, {.devices = *flags.machine.devices}).network;
  } else {
    network = sharding_network(flags);
  }
  write_out(flags, to_wcsp(network, flags.model.request.source));
}

ordered_json choice_json(const TargetChoice& choice) {
  ordered_json lost = ordered_json::array();
  for (const LostDecision& entry : choice.lost) {
    ordered_json item = {{"what", entry.what}, {"instead", entry.instead}};
    if (entry.step_time) {
      item["step_time_s"] = entry.step_time->value;
      item["peak_bytes"] = entry.peak->value;
      item["fits"] = entry.fits;
    }
    lost.push_back(std::move(item));
  }
  const TargetSettings& to = choice.settings;
  ordered_json json = {{"batch", to.batch},
                       {"micro_batch", to.micro},
                       {"accumulation", to.accumulation},
                       {"dp", to.dp},
                       {"tp", to.tp},
                       {"pp", to.pp},
                       {"cp", to.cp},
                       {"ep", to.ep},
                       {"zero", to.zero},
                       {"lost", std::move(lost)}};
  if (choice.step_time) {
    json["step_time_s"] = choice.step_time->value;
    json["peak_bytes"] = choice.peak->value;
    json["fits"] = choice.fits;
  }
  return json;
}

// Settings and scripts: the text, and what of the plan it does not say.
void tell(const ExportFlags& flags, const ExportSubject& subject, const TargetRules& rules,
          const TargetChoice& choice, const ExportedText& made) {
  write_out(flags, made.text);
  if (flags.json) {
    ordered_json json = choice_json(choice);
    json["plan_step_time_s"] = subject.step_time.value;
    json["notes"] = made.notes;
    if (flags.output.empty())
      json["text"] = made.text;
    else
      json["file"] = flags.output;
    fmt::print("{}", json_text(json));
    return;
  }
  std::fflush(stdout);
  std::string text = choice_text(subject, rules, choice);
  for (const std::string& note : made.notes) text += "to do: " + note + "\n";
  fmt::print(stderr, "{}", printable(text));
}

void export_plan(const ExportFlags& flags) {
  const std::string& path = flags.model.request.source;
  flags.model.refuse_beside_plan();
  const Subject loaded = subject_from_plan(path, flags.machine, ForWhom::AnyRunner);
  Pricing pricing = pricing_of(loaded);
  const SimulatedStep step = simulate_step(loaded.training, loaded.strategy, loaded.machine,
                                           pricing.cost(), {}, pricing.reprice());
  const Graph& training = loaded.training.graph;
  if (flags.format == "perfetto") {
    std::string text;
    write_trace(step, &training, loaded.machine, [&](std::string_view more) { text += more; });
    return write_out(flags, text);
  }
  if (flags.format == "csv") return write_out(flags, tasks_csv(step, training));
  if (flags.format == "dot")
    return write_out(flags, strategy_dot(loaded.training, loaded.strategy));
  if (flags.format == "memory-viz") return write_out(flags, memory_snapshot(step, training));
  // Other settings have other kernels: where those of the plan were measured, all go by what
  // kernels like them took.
  Machine machine = loaded.machine;
  if (pricing.reprice()) {
    StepCalibration seen(loaded.machine, pricing.cost());
    seen.add(step.tasks, step.times);
    machine = seen.apply(std::move(machine));
  }
  const SimulatedStep priced =
      simulate_step(loaded.training, loaded.strategy, machine, pricing.cost());
  // Rows of experts lie in slots in windlass alone.
  std::optional<Model> plain;
  if (has_expert_slots(loaded.model.graph)) {
    ModelRequest request = loaded.request;
    request.expert_capacity = 0;
    plain = load_model(request);
  }
  const ExportSubject subject = {
      .plan = *loaded.plan,
      .network = loaded.model.graph,
      .training = loaded.training,
      .strategy = loaded.strategy,
      .machine = machine,
      .cost = pricing.cost(),
      .step_time = priced.step_time(),
      .measured_step = pricing.reprice() ? std::optional(step.step_time()) : std::nullopt,
      .without_slots = plain ? &plain->graph : nullptr};
  if (flags.format == "pytorch") {
    const TargetChoice choice = choose_settings(subject, torch_script_rules());
    return tell(flags, subject, torch_script_rules(), choice, torch_script(subject, choice));
  }
  for (const SettingsExporter& exporter : settings_exporters())
    if (exporter.name == flags.format) {
      const TargetChoice choice = choose_settings(subject, exporter.rules);
      return tell(flags, subject, exporter.rules, choice, exporter.write(choice.settings));
    }
}

void run_export(const ExportFlags& flags) {
  if (flags.format == "wcsp") return export_problem(flags);
  if (!std::filesystem::exists(flags.model.request.source))
    fail_input("{}: there is no such file; --to {} wants a plan, as \"windlass plan -o\" writes it",
               flags.model.request.source, flags.format);
  if (!is_plan_file(flags.model.request.source))
    fail_input("{}: --to {} wants a plan file; make one with \"windlass plan\"",
               flags.model.request.source, flags.format);
  export_plan(flags);
}

}  // namespace

void add_export(CLI::App& program) {
  CLI::App* verb =
      program.add_subcommand("export", "Write a plan or a problem for another program.");
  auto flags = std::make_shared<ExportFlags>();
  flags->model.add_to(*verb);
  flags->machine.add_to(*verb, "machine: a preset or a JSON file; of a plan its own");
  std::vector<std::string> formats = {"wcsp", "pytorch", "perfetto", "memory-viz", "dot", "csv"};
  for (const SettingsExporter& exporter : settings_exporters()) formats.emplace_back(exporter.name);
  verb->add_option("--to", flags->format, "format: " + join(formats, ", "))
      ->required()
      ->check(CLI::IsMember(formats));
  verb->add_option("-o,--output", flags->output, "file; default: standard output")
      ->type_name("FILE");
  verb->add_flag("--json", flags->json,
                 "of settings and scripts: print for programs what they do not say");
  verb->footer(
      "MODEL is a plan file, for wcsp a model. Settings are the nearest that the other system has: "
      "what\n"
      "of the plan they do not say is listed, with what the plan would take without it, and so is "
      "what\n"
      "the settings would take, all in the simulator (standard error, or --json).\n"
      "deepspeed, megatron, torchtitan, accelerate, trainer: settings. pytorch: a script that "
      "trains.\n"
      "perfetto: the step for ui.perfetto.dev. memory-viz: allocations for PyTorch's memory "
      "viewer.\n"
      "dot: the forward pass with decisions. csv: tasks with their times.\n"
      "wcsp: the sharding problem that \"windlass plan --search exact\" solves, as a weighted "
      "constraint\n"
      "satisfaction problem for solvers such as toulbar2. A variable for each op, a value for each "
      "of\n"
      "its shardings, costs in nanoseconds (of PaSE's graphs: 1/1024 FLOP or a multiple of it).\n"
      "Examples:\n"
      "  windlass export plan.json --to deepspeed -o ds_config.json\n"
      "  windlass export plan.json --to megatron\n"
      "  windlass export plan.json --to pytorch -o train.py && torchrun --nproc-per-node 2 "
      "train.py\n"
      "  windlass export alexnet --batch 128 --on 8x1080ti --to wcsp -o alexnet.wcsp\n"
      "  windlass export pase:rnnlm --devices 8 --to wcsp -o rnnlm.wcsp && toulbar2 rnnlm.wcsp");
  verb->callback([flags] { run_export(*flags); });
}

}  // namespace windlass
