// `windlass train`: trains a model as a plan says, and lays what was measured beside what was
// predicted.

#include <cstdio>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/train_run.h"
#include "windlass/model/padding_rows.h"
#include "windlass/run/checkpoint.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// Known before anything runs; unlike a run that fails, this ends with ExitCode::NoPlan.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(std::string message) : Error(ErrorKind::OutOfMemory, std::move(message)) {}
};

PreparedRun prepare(const TrainFlags& flags, int& threads) {
  PreparedRun prepared;
  const auto simulate = [&](Pricing& pricing) {
    Progress progress("predicting");
    pricing.watch(&progress);
    Subject& subject = prepared.subject;
    prepared.step = simulate_step(subject.training, subject.strategy, subject.machine,
                                  pricing.cost(), {}, pricing.reprice());
    subject.facts.provenance = pricing.provenance();
  };
  const auto check_machine = [](const Machine& machine) {
    if (!runs_here(machine))
      fail_unsupported(
          "{}: training runs on the devices of this host so far: plan with --on local --devices N, "
          "or "
          "--on a file of windlass calibrate",
          machine.name);
  };
  if (is_plan_file(flags.model.request.source)) {
    if (!flags.strategy.empty())
      fail_input("{}: a plan has its own strategy; leave --strategy away",
                 flags.model.request.source);
    flags.model.refuse_beside_plan();
    MachineFlags machine = flags.machine;
    const std::string memory = machine.memory;
    machine.memory.clear();
    prepared.subject = subject_from_plan(flags.model.request.source, machine);
    check_machine(prepared.subject.machine);
    if (!memory.empty()) {
      // Another limit than the plan was made for.
      MachineFlags limited = flags.machine;
      limited.machine = "local";
      limited.devices = static_cast<int64_t>(prepared.subject.machine.devices.size());
      const Bytes limit = limited.load().devices[0].limit;
      for (Device& device : prepared.subject.machine.devices) device.limit = limit;
    }
    const size_t devices = prepared.subject.machine.devices.size();
    threads = flags.threads > 0 ? flags.threads : default_threads(devices);
    // Whatever the plan was priced with, what runs here is measured here.
    Pricing pricing(true, threads, static_cast<int>(devices), flags.prices);
    pricing.know(prepared.subject.plan->kernels);
    simulate(pricing);
    return prepared;
  }
  MachineFlags named = flags.machine;
  if (named.machine.empty()) named.machine = "local";
  if (named.machine == "local" && !named.devices) named.devices = 1;
  const auto devices = static_cast<size_t>(named.devices.value_or(1));
  threads = flags.threads > 0 ? flags.threads : default_threads(devices);
  named.threads = threads;
  if (!flags.strategy.empty()) {
    prepared.subject = subject_from_flags(flags.model, named, flags.strategy);
    check_machine(prepared.subject.machine);
    Pricing pricing(true, threads, static_cast<int>(devices), flags.prices);
    simulate(pricing);
    return prepared;
  }
  const Machine machine = named.load();
  check_machine(machine);
  Pricing pricing(true, threads, static_cast<int>(devices), flags.prices);
  // Prices are measured anew and may favour another cut of the batch, which rounds differently.
  const std::string resumed = find_checkpoint(flags.resume).path;
  const int64_t before = resumed.empty() ? 0 : checkpoint_micro_batches(resumed);
  PlannedSubject planned =
      plan_subject(flags.model, machine, pricing,
                   {.search = {.time_limit = flags.time_limit, .micro_batches = before}});
  if (!planned.fits && before > 0)  // the limit or the batch is another one
    planned =
        plan_subject(flags.model, machine, pricing, {.search = {.time_limit = flags.time_limit}});
  if (!planned.fits)
    throw DoesNotFit(fmt::format("no plan fits {}; the least limit is {} bytes ({})",
                                 format_bytes(planned.subject.machine.devices[0].limit),
                                 planned.search.least_limit ? planned.search.least_limit->value : 0,
                                 format_bytes(planned.search.least_limit.value_or(Bytes(0)))));
  prepared.subject = std::move(planned.subject);
  prepared.step = std::move(planned.step);
  return prepared;
}

// What cannot be written is told now, not when hours of training would be lost.
void check_outputs(const TrainFlags& flags) {
  const auto check = [](const std::string& path) {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    // Whoever reads a pipe would take it for ended.
    if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) return;
    const AtomicFile probe(path);
  };
  if (!flags.checkpoints.empty()) {
    std::error_code error;
    fs::create_directories(flags.checkpoints, error);
    if (error) fail_input("{}: cannot be made: {}", flags.checkpoints, error.message());
    check(checkpoint_path(flags.checkpoints, 0));
  }
  if (!flags.save.empty()) check(flags.save);
  if (!flags.trace.empty()) check(flags.trace);
}

ExitCode run_train(const TrainFlags& flags) {
  check_outputs(flags);
  int threads = 1;
  const PreparedRun prepared = prepare(flags, threads);
  if (prepared.step.result.status != SimStatus::Done) {
    const SimulationReport report =
        report_simulation(prepared.step, &prepared.subject.training.graph, prepared.subject.machine,
                          prepared.subject.facts);
    throw DoesNotFit(fmt::format("the step does not fit: {}", report.failure
                                                                  ? failure_reason(*report.failure)
                                                                  : "out of memory"));
  }
  for (const std::string& note : note_padding_rows(prepared.subject.model))
    fmt::print(stderr, "note: {}\n", printable(note));
  run_training(flags, prepared, threads);
  return ExitCode::Done;
}

}  // namespace

void add_train(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "train", "Trains a model as a plan says, inside its memory limit; without a plan, plans.");
  auto flags = std::make_shared<TrainFlags>();
  flags->add_to(*verb);
  verb->footer(
      "Ctrl-C finishes the step, writes a checkpoint and ends. A run that was killed goes on with\n"
      "--resume and ends with the same weights, bit for bit, as one that was not.\n"
      "Exit codes: 1 bad input, 2 it does not fit, 3 the run failed (loss not a number, disk "
      "full).\n"
      "Examples:\n"
      "  windlass train plan.json --data text.txt --steps 200 --lr 3e-4 --schedule cosine\n"
      "  windlass train resnet-18:classes=10 --image 32 --batch 32 --memory 300MiB --data cifar/ "
      "\\\n"
      "      --optimizer momentum --lr 0.05 --checkpoints run/ --checkpoint-every 50 --resume "
      "run/\n"
      "  windlass train model.onnx --data batches.safetensors --no-shuffle --strategy "
      "recompute-all");
  verb->callback([flags, &exit_code] {
    try {
      exit_code = run_train(*flags);
    } catch (const DoesNotFit& error) {
      fmt::print(stderr, "windlass: {}\n", error.message());
      exit_code = ExitCode::NoPlan;
    }
  });
}

}  // namespace windlass
