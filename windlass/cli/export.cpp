// `windlass export`: problems in the formats of other programs.

#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/layer_graphs.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {
namespace {

struct ExportFlags {
  ModelFlags model;
  MachineFlags machine;
  std::string format;
  std::string output;
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

void run_export(const ExportFlags& flags) {
  CostNetwork network;
  if (const auto graph =
          find_layer_graph(flags.model.request.source, flags.model.request.batch.value_or(0))) {
    if (!flags.machine.devices)
      fail_input("--devices is missing: how many devices share the graph?");
    network = make_pase_problem(*graph, {.devices = *flags.machine.devices}).network;
  } else {
    network = sharding_network(flags);
  }
  const std::string text = to_wcsp(network, flags.model.request.source);
  if (flags.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  AtomicFile file(flags.output);
  file.write(text);
  file.commit();
}

}  // namespace

void add_export(CLI::App& program) {
  CLI::App* verb =
      program.add_subcommand("export", "Write a problem or a plan for another program.");
  auto flags = std::make_shared<ExportFlags>();
  flags->model.add_to(*verb);
  flags->machine.add_to(*verb, "machine: a preset or a JSON file");
  verb->add_option("--to", flags->format, "format: wcsp")
      ->required()
      ->check(CLI::IsMember({"wcsp"}));
  verb->add_option("-o,--output", flags->output, "file; default: standard output")
      ->type_name("FILE");
  verb->footer(
      "wcsp: the sharding problem that \"windlass plan --search exact\" solves, as a weighted "
      "constraint\n"
      "satisfaction problem for solvers such as toulbar2. A variable for each op, a value for each "
      "of\n"
      "its shardings, costs in nanoseconds (of PaSE's graphs: 1/1024 FLOP or a multiple of it).\n"
      "Examples:\n"
      "  windlass export alexnet --batch 128 --on 8x1080ti --to wcsp -o alexnet.wcsp\n"
      "  windlass export pase:rnnlm --devices 8 --to wcsp -o rnnlm.wcsp && toulbar2 rnnlm.wcsp");
  verb->callback([flags] { run_export(*flags); });
}

}  // namespace windlass
