// `windlass advise`: which way to save memory pays for a model on a machine, and at which batch.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/search_flags.h"
#include "windlass/report/json.h"
#include "windlass/report/methods_text.h"
#include "windlass/search/advice/memory_methods.h"

namespace windlass {
namespace {

struct AdviseFlags {
  ModelFlags model;
  MachineFlags machine;
  std::vector<std::string> methods;
  std::vector<int64_t> batches;
  int64_t most = 1 << 16;
  double time_limit = 5;
  std::string svg;
  std::vector<std::string> measured;
  int threads = 0;
  uint64_t seed = 0;
  AllowFlag allow;
  bool json = false;
};

ExitCode run_advise(const AdviseFlags& flags) {
  if (flags.machine.machine.empty())
    fail_input("--on is missing: name a machine, e.g. --on 1x3090");
  if (is_plan_file(flags.model.request.source))
    fail_input("{}: a plan is for one batch; give the model itself", flags.model.request.source);
  if (flags.model.request.batch || flags.model.batch_choice != BatchChoice::Given)
    fail_input("--batch: advise looks at many; say which with --batches, or up to --max-batch");
  MachineFlags named = flags.machine;
  const size_t devices = named.local_devices();
  named.threads = flags.threads > 0 ? flags.threads : default_threads(devices);
  const Runner& runner = flags.model.request.runner;
  const Machine machine = machine_under(runner, named.load());
  Pricing pricing(measured_here(machine), named.threads, static_cast<int>(devices_here(machine)),
                  {}, runner);
  Progress progress("advising");
  pricing.watch(&progress);
  const InterruptScope interrupts;
  MethodsProblem problem = {
      .batch = {.network =
                    [&](int64_t samples) {
                      ModelFlags sized = flags.model;
                      sized.request.batch = samples;
                      sized.batch_choice = BatchChoice::Given;
                      return load_model(sized.model()).graph;
                    },
                .machine = machine,
                .training = flags.model.request.training,
                .cost = pricing.cost(),
                .reprice = pricing.reprice()},
      .methods = flags.methods,
      .batches = flags.batches,
      .copies_in_turn = !runner.overlaps_copies,
      .most = flags.most,
      .progress = [&](const std::string& what) { progress.show("advising: " + what); }};
  for (const std::string& file : flags.measured)
    std::ranges::copy(read_measured(file), std::back_inserter(problem.measured));
  problem.search.time_limit = Seconds(flags.time_limit);
  problem.search.effort = 0.1;
  problem.search.seed = flags.seed;
  problem.search.threads = flags.threads;
  problem.search.compress = flags.allow.compress();
  problem.search.stop = [] { return InterruptScope::interrupted(); };
  std::vector<MethodCurve> curves = simulate_methods(problem);
  MethodsReport report = {.model = flags.model.request.source,
                          .machine = machine.name,
                          .provenance = pricing.provenance(),
                          .runner = runner.name,
                          .base = methods_base(machine),
                          .devices = static_cast<int64_t>(machine.devices.size()),
                          .limit = machine.devices[0].limit,
                          .card = flags.machine.memory.empty()
                                      ? machine.type_of(DeviceId(size_t{0})).memory
                                      : machine.devices[0].limit,
                          .methods = {}};
  for (const Device& device : machine.devices) report.limit = std::min(report.limit, device.limit);
  for (MethodCurve& curve : curves)
    if (curve.name == "mixture") curve.lossy = flags.allow.compress() > 0;
  report.methods = advise_methods(std::move(curves), report.limit, report.card);
  pricing.watch(nullptr);
  if (!flags.svg.empty()) {
    AtomicFile file(flags.svg);
    file.write(methods_svg(report));
    file.commit();
  }
  const bool fits = std::ranges::any_of(
      report.methods, [](const MethodAdvice& advice) { return advice.curve.best() != nullptr; });
  fmt::print("{}", flags.json ? json_text(methods_json(report)) : methods_text(report));
  return fits ? ExitCode::Done : ExitCode::NoPlan;
}

}  // namespace

void add_advise(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "advise", "Which way to save memory pays, and at which batch: recompute, offload, compress.");
  auto flags = std::make_shared<AdviseFlags>();
  flags->model.add_to(*verb, ModelFlags::Runners::Any);
  flags->machine.add_to(*verb, "machine: \"local\", a preset or a JSON file");
  verb->add_option("--methods", flags->methods,
                   "beside plain: " + join(memory_methods(), ", ") + " (default: all)")
      ->type_name("METHOD...")
      ->check(CLI::IsMember(memory_methods()));
  verb->add_option("--batches", flags->batches,
                   "batches to simulate (default: powers of two and the largest of each method)")
      ->type_name("N...")
      ->check(positive_number());
  verb->add_option("--max-batch", flags->most, "most samples that are tried")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_option("--time-limit", flags->time_limit,
                   "seconds that the search of the mixture has for each batch")
      ->capture_default_str()
      ->check(number_in(0.01, 1e6));
  flags->allow.add_to(*verb);
  verb->add_option(
          "--measured", flags->measured,
          "a CSV file of steps that were measured, which move the predictions\n"
          "(batch,method,peak_bytes,step_time_s), or a trace of torch.profiler or a memory\n"
          "snapshot of PyTorch as JSON with its batch: trace.json@16, snapshot.json@16,recompute")
      ->type_name("FILE")
      ->allow_extra_args(false);
  verb->add_option("--svg", flags->svg, "write the plot to a file")->type_name("FILE");
  verb->add_option("--threads", flags->threads, "of the search, and of kernels on \"local\"")
      ->check(nonnegative_number());
  verb->add_option("--seed", flags->seed, "of the search")->capture_default_str();
  verb->add_flag("--json", flags->json, "print for programs");
  verb->footer(
      "Steps of each method are simulated over batches, inside of the machine's limit. A method "
      "pays if\n"
      "its best throughput is above that of plain training: slower steps, but more samples in "
      "them.\n"
      "Largest batches are found by simulation and halving. Peaks are the largest of three lines, "
      "for\n"
      "the forward pass, the backward pass and the update; from these and from the line of the "
      "time\n"
      "follow the memory and the depth at which a method begins to pay. PAPAYA's model, fitted to "
      "the\n"
      "same steps, stands beside. Several devices share each batch evenly (data parallelism).\n"
      "Exit code 2 if nothing fits.\n"
      "Examples:\n"
      "  windlass advise bert-large --on 1x3090\n"
      "  windlass advise resnet-50 --on 1xv100-16g --runner pytorch --svg resnet.svg\n"
      "  windlass advise gpt2-xl --on 4x3090 --methods recompute offload --json\n"
      "  windlass advise model.onnx --on local --memory 1GiB --max-batch 64");
  verb->callback([flags, &exit_code] { exit_code = run_advise(*flags); });
}

}  // namespace windlass
