// `windlass train`: trains a model as a plan says, and lays what was measured beside what was
// predicted.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/rank_processes.h"
#include "windlass/cli/train_ranks.h"
#include "windlass/cli/train_run.h"
#include "windlass/machine/cluster.h"
#include "windlass/model/padding_rows.h"
#include "windlass/run/checkpoint.h"
#include "windlass/run/checkpoint_folder.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// Known before anything runs; unlike a run that fails, this ends with ExitCode::NoPlan.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(std::string message) : Error(ErrorKind::OutOfMemory, std::move(message)) {}
};

// Devices of a machine that kernels run on at the same time on one host.
size_t devices_beside(const Machine& machine, const Ranks* ranks) {
  if (ranks == nullptr || ranks->one_host()) return machine.devices.size();
  return most_devices_of_a_node(machine);
}

// The same of a machine that flags name. The number of processes is no concern of a machine file.
size_t devices_at_once(MachineFlags& named, const Ranks* ranks) {
  if (named.machine != "local") {
    named.hosts.reset();
    return devices_beside(named.load(), ranks);
  }
  if (!named.devices) named.devices = 1;
  return ranks == nullptr || ranks->one_host() ? named.local_devices()
                                               : static_cast<size_t>(*named.devices);
}

// Of several processes the first one: the others do as its plan says. `text` becomes the plan, if
// it is asked for and the step fits.
PreparedRun prepare(const TrainFlags& flags, int& threads, const Ranks* ranks, std::string* text) {
  PreparedRun prepared;
  const auto write = [&](Pricing& pricing) {
    if (text != nullptr && prepared.step.result.status == SimStatus::Done)
      *text = plan_to_json(plan_of(prepared.subject, prepared.step, "given", "given", pricing));
  };
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
          "{}: training runs on CPU devices: plan with --on local --devices N (or --hosts N), or "
          "on "
          "a file of windlass calibrate",
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
    machine.hosts.reset();
    prepared.subject = subject_from_plan(flags.model.request.source, machine);
    check_machine(prepared.subject.machine);
    if (!memory.empty()) {
      // Another limit than the plan was made for.
      MachineFlags limited = flags.machine;
      limited.machine = "local";
      limited.hosts.reset();
      limited.devices = static_cast<int64_t>(prepared.subject.machine.devices.size());
      const Bytes limit = limited.load().devices[0].limit;
      for (Device& device : prepared.subject.machine.devices) device.limit = limit;
    }
    const size_t devices = devices_beside(prepared.subject.machine, ranks);
    threads = flags.threads > 0 ? flags.threads : default_threads(devices);
    // Whatever the plan was priced with, what runs here is measured here.
    Pricing pricing(true, threads, static_cast<int>(devices), flags.prices);
    pricing.know(prepared.subject.plan->kernels);
    simulate(pricing);
    write(pricing);
    return prepared;
  }
  MachineFlags named = flags.machine;
  if (named.machine.empty()) named.machine = "local";
  const size_t devices = devices_at_once(named, ranks);
  threads = flags.threads > 0 ? flags.threads : default_threads(devices);
  named.threads = threads;
  if (ranks != nullptr) named.processes = ranks->size();
  if (!flags.strategy.empty()) {
    prepared.subject = subject_from_flags(flags.model, named, flags.strategy);
    check_machine(prepared.subject.machine);
    Pricing pricing(true, threads, static_cast<int>(devices), flags.prices);
    simulate(pricing);
    write(pricing);
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
  if (!planned.fits) {
    const std::string cut = time_cuts(planned.search.stages);
    const Bytes least = planned.search.least_limit.value_or(Bytes(0));
    throw DoesNotFit(fmt::format("no plan fits {}; the least limit {} {} bytes ({}){}",
                                 format_bytes(planned.subject.machine.devices[0].limit),
                                 cut.empty() ? "is" : "that was found is", least.value,
                                 format_bytes(least),
                                 cut.empty() ? cut : "; the time limit cut short: " + cut));
  }
  prepared.subject = std::move(planned.subject);
  prepared.step = std::move(planned.step);
  write(pricing);
  return prepared;
}

// As the plan of rank 0 says, with its prices: so that all have the same tasks in the same order.
PreparedRun follow(const TrainFlags& flags, const std::string& text, const Ranks& ranks,
                   int& threads) {
  PreparedRun prepared;
  prepared.subject =
      subject_of_plan(plan_from_json(text, "the plan of rank 0"), "the plan of rank 0", {});
  const size_t devices = devices_beside(prepared.subject.machine, &ranks);
  threads = flags.threads > 0 ? flags.threads : default_threads(devices);
  Pricing pricing(true, threads, static_cast<int>(devices), {.fresh = false, .off = true});
  pricing.know(prepared.subject.plan->kernels);
  Subject& subject = prepared.subject;
  prepared.step = simulate_step(subject.training, subject.strategy, subject.machine, pricing.cost(),
                                {}, pricing.reprice());
  subject.facts.provenance = pricing.provenance();
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

PreparedRun prepare_to_fit(const TrainFlags& flags, int& threads, const Ranks* ranks,
                           std::string* text) {
  PreparedRun prepared = prepare(flags, threads, ranks, text);
  if (prepared.step.result.status == SimStatus::Done) return prepared;
  const SimulationReport report =
      report_simulation(prepared.step, &prepared.subject.training.graph, prepared.subject.machine,
                        prepared.subject.facts);
  throw DoesNotFit(fmt::format("the step does not fit: {}",
                               report.failure ? failure_reason(*report.failure) : "out of memory"));
}

void run_on_ranks(const TrainFlags& flags, Ranks& ranks) {
  const bool first = ranks.rank() == 0;
  during(&ranks, "comparing settings", [&] {
    compare_ranks(ranks, settings_of(flags));
    if (first) check_outputs(flags);
    if (!flags.checkpoints.empty()) check_shared_folder(ranks, flags.checkpoints);
  });
  int threads = 1;
  std::optional<PreparedRun> prepared;
  std::string text;
  during(&ranks, first ? "planning" : "waiting for the plan", [&] {
    if (first) prepared = prepare_to_fit(flags, threads, &ranks, &text);
    text = ranks.tell_all(text)[0];
  });
  if (!first) try {
      during(&ranks, "reading the plan", [&] { prepared = follow(flags, text, ranks, threads); });
    } catch (const Error& error) {
      fail(ErrorKind::Runtime, "has another model file than rank 0, or cannot read it: {}",
           error.message());
    }
  run_training(flags, *prepared, threads, &ranks);
}

ExitCode run_train(TrainFlags& flags) {
  if (flags.rehearse > 0) return run_rehearsal(flags);
  if (starts_ranks(flags)) return start_ranks(flags);
  if (const std::unique_ptr<Ranks> ranks = join_others(flags.time_out, flags.bind)) {
    try {
      take_hosts_left(flags, ranks.get());
      run_on_ranks(flags, *ranks);
    } catch (const DoesNotFit& error) {
      ranks->fail(error.message());
      throw;
    } catch (const Error& error) {
      ranks->fail(error.message());
      throw error.within(fmt::format("rank {}", ranks->rank()));
    } catch (const std::exception& error) {
      ranks->fail(error.what());
      throw;
    }
    return ExitCode::Done;
  }
  take_hosts_left(flags, nullptr);
  check_outputs(flags);
  int threads = 1;
  const PreparedRun prepared = prepare_to_fit(flags, threads, nullptr, nullptr);
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
      "Several processes, each with a host of the plan or with a device, train the same weights: "
      "--hosts N\n"
      "starts them here; torchrun, mpirun and srun start them anywhere.\n"
      "Examples:\n"
      "  windlass train gpt2 --batch 8 --strategy dp --on local --hosts 2 --data text.txt\n"
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
