// `windlass train`: trains a model as a plan says, and lays what was measured beside what was
// predicted.

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/planning.h"
#include "windlass/cli/progress.h"
#include "windlass/report/comparison.h"
#include "windlass/report/trace.h"
#include "windlass/run/checkpoint.h"
#include "windlass/run/runtime.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct TrainFlags {
  ModelFlags model;
  MachineFlags machine;
  std::string strategy;
  double time_limit = 60;
  int threads = 0;

  int64_t steps = 100;
  std::string data = "synthetic";
  int token_bytes = 2;
  std::string mean = "0", deviation = "1";
  bool no_shuffle = false;
  uint64_t seed = 0;
  std::string weights;

  double learning_rate = 1e-3, minimum_rate = 0;
  std::string schedule = "constant";
  int64_t warm_up = 0;
  double weight_decay = 0, momentum = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, clip = 0;

  int64_t evaluate_every = 0, evaluate_batches = 10;
  std::string checkpoints;
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string save, log, trace;
  bool json = false, paranoid = false;
};

std::vector<double> numbers(const std::string& text, const char* flag) {
  std::vector<double> list;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    try {
      size_t used = 0;
      list.push_back(std::stod(part, &used));
      if (used != part.size()) throw std::invalid_argument(part);
    } catch (const std::exception&) {
      fail_input("{}: \"{}\" is not a number", flag, part);
    }
    at = comma + 1;
  }
  return list;
}

TrainerOptions trainer_options(const TrainFlags& flags, int threads) {
  TrainerOptions options;
  options.executor.threads = threads;
  options.executor.paranoid = flags.paranoid;
  options.hyperparameters.momentum = flags.momentum;
  options.hyperparameters.beta1 = flags.beta1;
  options.hyperparameters.beta2 = flags.beta2;
  options.hyperparameters.epsilon = flags.epsilon;
  options.hyperparameters.weight_decay = flags.weight_decay;
  options.rate = {.peak = flags.learning_rate,
                  .floor = flags.minimum_rate,
                  .shape = rate_shape_from_name(flags.schedule),
                  .warm_up = flags.warm_up,
                  .steps = flags.steps};
  options.clip_norm = flags.clip;
  options.seed = flags.seed;
  options.shuffle = !flags.no_shuffle;
  options.data = flags.data;
  options.data_options.token_bytes = flags.token_bytes;
  options.data_options.mean = numbers(flags.mean, "--mean");
  options.data_options.deviation = numbers(flags.deviation, "--std");
  options.data_options.seed = flags.seed;
  if (flags.evaluate_every > 0) options.data_options.part = DataPart::Train;
  options.weights = flags.weights;
  return options;
}

// Known before anything runs; unlike a run that fails, this ends with ExitCode::NoPlan.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(std::string message) : Error(ErrorKind::OutOfMemory, std::move(message)) {}
};

// The file that --resume means; none if there is none yet: a folder without checkpoints is where a
// run that was killed early left off.
FoundCheckpoint find_resumed(const TrainFlags& flags) {
  std::error_code ignored;
  if (fs::is_directory(flags.resume, ignored)) return newest_checkpoint(flags.resume);
  return {.path = flags.resume};
}

// What is trained and how: from a plan, from a named strategy, or searched for now.
struct Prepared {
  Subject subject;
  SimulatedStep step;
};

Prepared prepare(const TrainFlags& flags, int& threads) {
  Prepared prepared;
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
          "{}: training runs on one device of this host so far: plan with --on local --devices 1",
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
      // A tighter limit than the plan was made for.
      MachineFlags limited = flags.machine;
      limited.machine = "local";
      limited.devices = 1;
      prepared.subject.machine.devices[0].limit = limited.load().devices[0].limit;
    }
    threads = flags.threads > 0 ? flags.threads : default_threads(1);
    // Whatever the plan was priced with, what runs here is measured here.
    Pricing pricing(true, threads);
    pricing.know(prepared.subject.plan->kernels);
    simulate(pricing);
    return prepared;
  }
  MachineFlags named = flags.machine;
  if (named.machine.empty()) named.machine = "local";
  if (named.machine == "local" && !named.devices) named.devices = 1;
  threads = flags.threads > 0 ? flags.threads : default_threads(1);
  named.threads = threads;
  if (!flags.strategy.empty()) {
    prepared.subject = subject_from_flags(flags.model, named, flags.strategy);
    check_machine(prepared.subject.machine);
    Pricing pricing(true, threads);
    simulate(pricing);
    return prepared;
  }
  const Machine machine = named.load();
  check_machine(machine);
  Pricing pricing(true, threads);
  // Prices are measured anew and may favour another cut of the batch, which rounds differently.
  const std::string resumed = find_resumed(flags).path;
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

// Step times, peaks, and the timeline of the step nearest to the median.
class Measurements {
 public:
  void add(const StepOutcome& outcome, bool first) {
    if (peaks_.empty()) peaks_.resize(outcome.peaks.size(), 0);
    for (size_t m = 0; m < peaks_.size(); ++m) peaks_[m] = std::max(peaks_[m], outcome.peaks[m]);
    // The first step warms up caches and libraries.
    if (!first || times_.empty()) {
      if (first_only_) times_.clear(), timelines_.clear();
      first_only_ = first;
      times_.push_back(outcome.time);
      timelines_.emplace_back(outcome.start, outcome.end);
      constexpr size_t kKept = 32;
      if (timelines_.size() > kKept) timelines_.erase(timelines_.begin());
    }
  }
  bool empty() const { return times_.empty(); }
  int64_t device_peak() const { return peaks_.empty() ? 0 : peaks_[0]; }
  const std::vector<int64_t>& peaks() const { return peaks_; }

  MeasuredStep result() const {
    std::vector<Nanoseconds> sorted = times_;
    std::ranges::sort(sorted);
    const Nanoseconds median = sorted[sorted.size() / 2];
    MeasuredStep step;
    step.step_time = Seconds(static_cast<double>(median) * 1e-9);
    step.fastest = Seconds(static_cast<double>(sorted.front()) * 1e-9);
    step.slowest = Seconds(static_cast<double>(sorted.back()) * 1e-9);
    const size_t offset = times_.size() - timelines_.size();
    size_t nearest = 0;
    for (size_t i = 1; i < timelines_.size(); ++i)
      if (std::abs(times_[offset + i] - median) < std::abs(times_[offset + nearest] - median))
        nearest = i;
    step.start = timelines_[nearest].first;
    step.end = timelines_[nearest].second;
    step.peaks = peaks_;
    return step;
  }

 private:
  std::vector<Nanoseconds> times_;
  std::vector<std::pair<std::vector<Nanoseconds>, std::vector<Nanoseconds>>> timelines_;
  std::vector<int64_t> peaks_;
  bool first_only_ = false;
};

std::string remaining_time(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// Of a log, the lines up to a step; a line that was cut off is dropped, too.
void keep_lines(const std::string& path, int64_t last) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    int64_t step = 0;  // the header is no number
    std::from_chars(line.data(), line.data() + line.size(), step);
    if (step <= last) kept += line + "\n";
  }
  file.close();
  AtomicFile rewritten(path);
  rewritten.write(kept);
  rewritten.commit();
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

class TrainingRun {
 public:
  TrainingRun(const TrainFlags& flags, Prepared& prepared, int threads)
      : flags_(flags),
        prepared_(prepared),
        trainer_(open_runtime().train(prepared.subject.model, prepared.subject.training,
                                      prepared.step, prepared.subject.machine,
                                      trainer_options(flags, threads))) {
    resume();
    open_log();
  }

  ExitCode run() {
    introduce();
    const InterruptScope signals;
    {
      Progress progress("training");
      bool first = true;
      while (trainer_->steps_done() < flags_.steps && !InterruptScope::interrupted()) {
        one_step(progress, first);
        first = false;
      }
    }
    const bool stopped = InterruptScope::interrupted();
    if (!flags_.checkpoints.empty() && last_checkpoint_ != trainer_->steps_done()) checkpoint();
    if (stopped)
      fmt::print(stderr, "stopped after step {}{}\n", trainer_->steps_done(),
                 flags_.checkpoints.empty() ? "; no --checkpoints folder, nothing was saved" : "");
    finish();
    return ExitCode::Done;
  }

 private:
  void resume() {
    const FoundCheckpoint found = find_resumed(flags_);
    for (const std::string& damage : found.passed_over)
      fmt::print(stderr, "passed over: {}\n", damage);
    resumed_ = found.path;
    if (resumed_.empty()) return;
    if (!found.passed_over.empty()) fmt::print(stderr, "going on from {}\n", resumed_);
    trainer_->load_checkpoint(resumed_);
    last_checkpoint_ = trainer_->steps_done();
    const int64_t before = checkpoint_micro_batches(resumed_);
    const int64_t now = prepared_.subject.strategy.micro_batches;
    if (before != now)
      fmt::print(stderr,
                 "{}: was written with {} micro-batches, this run has {}: it goes on, but not bit "
                 "for bit\n",
                 resumed_, before, now);
  }

  // A run that goes on keeps the lines of the steps that it does not do again.
  void open_log() {
    if (flags_.log.empty()) return;
    std::error_code ignored;
    const bool fresh = resumed_.empty() || !fs::is_regular_file(flags_.log, ignored);
    if (!fresh) keep_lines(flags_.log, trainer_->steps_done());
    log_.open(flags_.log, fresh ? std::ios::trunc : std::ios::app);
    if (!log_) fail_input("{}: cannot be written", flags_.log);
    if (fresh) log_ << "step,loss,learning_rate,step_time_s,samples_per_s,peak_bytes,eval_loss\n";
  }

  void introduce() const {
    if (flags_.json) return;
    const Subject& subject = prepared_.subject;
    fmt::print("{}: {} samples a step in {} micro-batch{}\n", subject.facts.model,
               subject.facts.samples, subject.strategy.micro_batches,
               subject.strategy.micro_batches == 1 ? "" : "es");
    fmt::print("  data: {}\n  weights: {}\n", trainer_->describe_data(),
               trainer_->describe_weights());
    if (!resumed_.empty()) fmt::print("  resumed after step {}\n", trainer_->steps_done());
    fmt::print("  predicted: {} a step, peak {} of {}\n",
               format_seconds(prepared_.step.step_time()),
               format_bytes(Bytes(prepared_.step.result.peaks[0].bytes)),
               format_bytes(subject.machine.devices[0].limit));
  }

  void one_step(Progress& progress, bool first) {
    const TrainerStep done = trainer_->step();
    measured_.add(done.outcome, first);
    const double seconds = static_cast<double>(done.outcome.time) * 1e-9;
    const double rate = static_cast<double>(prepared_.subject.facts.samples) / seconds;
    std::optional<double> evaluated;
    if (flags_.evaluate_every > 0 && done.step % flags_.evaluate_every == 0)
      evaluated = trainer_->evaluate(flags_.evaluate_batches);
    if (flags_.json) {
      ordered_json line = {{"step", done.step},
                           {"loss", done.outcome.loss},
                           {"learning_rate", done.learning_rate},
                           {"step_time_s", seconds},
                           {"samples_per_s", rate},
                           {"devices",
                            {{{"name", prepared_.subject.machine.devices[0].name},
                              {"peak_bytes", done.outcome.peaks[0]}}}}};
      if (done.outcome.peaks.size() > 1) line["host"] = {{"peak_bytes", done.outcome.peaks[1]}};
      if (flags_.clip > 0) line["gradient_norm"] = done.outcome.gradient_norm;
      if (evaluated) line["eval_loss"] = *evaluated;
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    } else {
      const double left = seconds * static_cast<double>(flags_.steps - done.step);
      progress.show(fmt::format(
          "{} {}/{}  loss {:.4f}  {:.1f} samples/s  {}  {} left",
          Progress::bar(static_cast<double>(done.step) / static_cast<double>(flags_.steps)),
          done.step, flags_.steps, done.outcome.loss, rate,
          format_bytes(Bytes(done.outcome.peaks[0])), remaining_time(left)));
      print_now_and_then(done, rate, evaluated);
    }
    if (log_.is_open()) {
      log_ << fmt::format("{},{},{},{},{},{},{}\n", done.step, done.outcome.loss,
                          done.learning_rate, seconds, rate, done.outcome.peaks[0],
                          evaluated ? fmt::format("{}", *evaluated) : "");
      log_.flush();
      if (!log_) fail(ErrorKind::Runtime, "{}: cannot be written: disk full?", flags_.log);
    }
    if (!flags_.checkpoints.empty() && flags_.checkpoint_every > 0 &&
        done.step % flags_.checkpoint_every == 0)
      checkpoint();
  }

  // About ten lines of a run for those who read it later.
  void print_now_and_then(const TrainerStep& done, double rate,
                          const std::optional<double>& evaluated) const {
    const int64_t every = std::max<int64_t>(1, flags_.steps / 10);
    if (done.step % every != 0 && done.step != 1 && !evaluated) return;
    fmt::print("{}step {:>6}  loss {:.4f}  {:.1f} samples/s{}\n",
               isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0 ? "\r\x1b[K" : "",
               done.step, done.outcome.loss, rate,
               evaluated ? fmt::format("  evaluation loss {:.4f}", *evaluated) : "");
    std::fflush(stdout);
  }

  void checkpoint() {
    trainer_->save_checkpoint(checkpoint_path(flags_.checkpoints, trainer_->steps_done()));
    remove_old_checkpoints(flags_.checkpoints, trainer_->steps_done(), 2);
    last_checkpoint_ = trainer_->steps_done();
  }

  void finish() {
    if (!flags_.save.empty()) trainer_->save_weights(flags_.save);
    if (measured_.empty()) {
      if (flags_.json)
        fmt::print("{}\n", ordered_json{{"steps", trainer_->steps_done()}}.dump());
      else
        fmt::print("nothing left to do: {} steps are done\n", trainer_->steps_done());
      return;
    }
    const MeasuredStep measured = measured_.result();
    const Comparison comparison = compare(prepared_.step, measured);
    if (!flags_.trace.empty()) {
      AtomicFile file(flags_.trace);
      const SimulatedStep run = as_step(prepared_.step, measured);
      const TracedStep both[] = {{&prepared_.step, "predicted"}, {&run, "measured"}};
      write_traces(both, &prepared_.subject.training.graph, prepared_.subject.machine,
                   [&](std::string_view text) { file.write(text); });
      file.commit();
    }
    if (flags_.json) {
      ordered_json json = comparison_json(comparison);
      json["steps"] = trainer_->steps_done();
      fmt::print("{}\n", json.dump());
      return;
    }
    fmt::print("\n{}", comparison_text(comparison));
    fmt::print("measured: median of the steps after the first; predicted: simulated, {}\n",
               prepared_.subject.facts.provenance);
  }

  const TrainFlags& flags_;
  const Prepared& prepared_;
  std::unique_ptr<Training> trainer_;
  Measurements measured_;
  std::ofstream log_;
  std::string resumed_;
  int64_t last_checkpoint_ = -1;
};

ExitCode run_train(const TrainFlags& flags) {
  check_outputs(flags);
  int threads = 1;
  Prepared prepared = prepare(flags, threads);
  if (prepared.step.result.status != SimStatus::Done) {
    const SimulationReport report =
        report_simulation(prepared.step, &prepared.subject.training.graph, prepared.subject.machine,
                          prepared.subject.facts);
    throw DoesNotFit(fmt::format("the step does not fit: {}", report.failure
                                                                  ? failure_reason(*report.failure)
                                                                  : "out of memory"));
  }
  return TrainingRun(flags, prepared, threads).run();
}

void add_run_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option("--steps", flags.steps, "steps of the whole run")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb.add_option("--data", flags.data,
                  "text, tokens (.bin), MNIST or CIFAR-10 files, .safetensors with a tensor for "
                  "each input, or \"synthetic\"")
      ->capture_default_str();
  verb.add_option("--token-bytes", flags.token_bytes, "of .bin files: 2 or 4")
      ->capture_default_str()
      ->check(CLI::IsMember({2, 4}));
  verb.add_option("--mean", flags.mean, "of pixels, for all channels or for each: 0.5,0.5,0.5")
      ->capture_default_str();
  verb.add_option("--std", flags.deviation, "of pixels")->capture_default_str();
  verb.add_flag("--no-shuffle", flags.no_shuffle, "take samples in the order of the data");
  verb.add_option("--seed", flags.seed, "of data order, initial weights, dropout")
      ->capture_default_str();
  verb.add_option("--weights", flags.weights, "safetensors file to start from")->type_name("FILE");
  verb.add_option("--lr", flags.learning_rate, "learning rate")->capture_default_str();
  verb.add_option("--min-lr", flags.minimum_rate, "where cosine and linear end")
      ->capture_default_str();
  verb.add_option("--schedule", flags.schedule, "constant, cosine or linear")
      ->capture_default_str();
  verb.add_option("--warm-up", flags.warm_up, "steps in which the learning rate rises")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb.add_option("--weight-decay", flags.weight_decay)->capture_default_str();
  verb.add_option("--momentum", flags.momentum, "of optimizer momentum")->capture_default_str();
  verb.add_option("--beta1", flags.beta1)->capture_default_str();
  verb.add_option("--beta2", flags.beta2)->capture_default_str();
  verb.add_option("--epsilon", flags.epsilon)->capture_default_str();
  verb.add_option("--clip", flags.clip, "largest norm of all gradients together; 0: as they are")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

void add_output_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option("--eval-every", flags.evaluate_every, "steps between evaluations; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb.add_option("--eval-batches", flags.evaluate_batches, "batches of an evaluation")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI::Option* folder =
      verb.add_option("--checkpoints", flags.checkpoints, "folder for checkpoints")
          ->type_name("FOLDER");
  verb.add_option("--checkpoint-every", flags.checkpoint_every,
                  "steps between checkpoints; 0: one at the end")
      ->needs(folder)
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb.add_option("--resume", flags.resume,
                  "go on from a checkpoint, or from the newest one of a folder that is whole")
      ->type_name("PATH");
  verb.add_option("--save", flags.save, "write the weights at the end")
      ->type_name("FILE.safetensors");
  verb.add_option("--log", flags.log, "write a line a step")->type_name("FILE.csv");
  verb.add_option("--trace", flags.trace,
                  "write the predicted and the measured step for ui.perfetto.dev")
      ->type_name("FILE");
  verb.add_flag("--paranoid", flags.paranoid,
                "memory that notices misuse: slower, the same results; for reports of bugs");
  verb.add_flag("--json", flags.json, "print a JSON line a step, and a last one for the run");
}

}  // namespace

void add_train(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "train", "Trains a model as a plan says, inside its memory limit; without a plan, plans.");
  auto flags = std::make_shared<TrainFlags>();
  flags->model.add_to(*verb);
  verb->add_option("--on", flags->machine.machine, "machine, if there is no plan: \"local\"")
      ->type_name("MACHINE");
  flags->machine.add_to(*verb);
  verb->add_option("--strategy", flags->strategy, "a named strategy instead of a search")
      ->type_name("SPEC");
  verb->add_option("--time-limit", flags->time_limit, "seconds to search, if there is no plan")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", flags->threads, "threads that kernels use; default: all cores")
      ->check(CLI::PositiveNumber);
  add_run_flags(*verb, *flags);
  add_output_flags(*verb, *flags);
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
