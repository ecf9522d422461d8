#include "windlass/cli/train_run.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/progress.h"
#include "windlass/cli/rank_processes.h"
#include "windlass/cli/train_overlap.h"
#include "windlass/cli/train_ranks.h"
#include "windlass/report/comparison.h"
#include "windlass/report/trace.h"
#include "windlass/run/checkpoint.h"
#include "windlass/run/checkpoint_folder.h"
#include "windlass/run/event_file.h"
#include "windlass/run/other_load.h"
#include "windlass/run/runtime.h"
#include "windlass/run/step_log.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

std::string remaining_time(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\x1b[K");
}

// Who hears of late tasks and of threads that hang.
TrainerOptions watched(TrainerOptions options, Ranks* ranks) {
  options.executor.ranks = ranks;
  options.executor.watch.late = [](const std::string& message) {
    clear_progress();
    fmt::print(stderr, "note: {}\n", printable(message));
  };
  options.executor.watch.stuck = [](const Error& error) {
    clear_progress();
    end_at_once(error);
  };
  return options;
}

class TrainingRun {
 public:
  TrainingRun(const TrainFlags& flags, const PreparedRun& prepared, int threads, Ranks* ranks)
      : flags_(flags),
        prepared_(prepared),
        ranks_(ranks),
        first_(ranks == nullptr || ranks->rank() == 0),
        overlap_(plan_overlap(flags, prepared.step, ranks == nullptr)),
        trainer_(made_trainer(threads)) {
    during(ranks, "loading the checkpoint", [&] { resume(); });
    during(ranks, "comparing weights and data", [&] { compare_with_others(); });
    if (!first_) return;
    if (!flags.tensorboard.empty()) events_.emplace(flags.tensorboard);
    if (flags.log.empty()) return;
    std::optional<int64_t> done;
    if (!resumed_.empty()) done = trainer_->steps_done();
    log_.emplace(flags.log, done);
  }

  void run() {
    introduce();
    const InterruptScope signals;
    {
      Progress progress("training");
      // A row is done to its end.
      while (trainer_->steps_done() < flags_.steps && (trainer_->in_row() || !stopped()))
        one_step(progress);
    }
    const bool stopped = stopped_;
    if (!flags_.checkpoints.empty() && last_checkpoint_ != trainer_->steps_done()) checkpoint();
    if (stopped && first_)
      fmt::print(stderr, "stopped after step {}{}\n", trainer_->steps_done(),
                 flags_.checkpoints.empty() ? "; no --checkpoints folder, nothing was saved" : "");
    finish();
  }

 private:
  TrainerOptions options_of(int threads) const {
    TrainerOptions options = watched(flags_.trainer_options(threads), ranks_);
    options.overlap = overlap_options(flags_, overlap_);
    return options;
  }

  std::unique_ptr<Training> made_trainer(int threads) const {
    std::unique_ptr<Training> made;
    during(ranks_, "loading weights and data", [&] {
      made = open_runtime().train(prepared_.subject.model, prepared_.subject.training,
                                  prepared_.step, prepared_.subject.machine, options_of(threads));
    });
    return made;
  }

  // All stop after the same step.
  bool stopped() {
    stopped_ = InterruptScope::interrupted();
    if (ranks_ == nullptr) return stopped_;
    try {
      for (const std::string& other : ranks_->tell_all(stopped_ ? "stop" : "go"))
        stopped_ |= other == "stop";
    } catch (const Error& error) {
      throw error.within(fmt::format("after step {}", trainer_->steps_done()));
    }
    return stopped_;
  }

  // What ranks must have in common to train together.
  void compare_with_others() const {
    if (ranks_ == nullptr) return;
    uint64_t order = 0;
    for (Nanoseconds start : prepared_.step.result.start)
      order = order * 31 + static_cast<uint64_t>(start);
    const Training::Fingerprints found = trainer_->fingerprints();
    compare_ranks(*ranks_,
                  {{"model", format_fingerprint(fingerprint(prepared_.subject.model.graph))},
                   {"order of tasks", format_fingerprint(order)},
                   {"data set", format_fingerprint(found.data)},
                   {"initial weights", format_fingerprint(found.weights)},
                   {"number of steps done", std::to_string(trainer_->steps_done())}});
  }

  void resume() {
    FoundCheckpoint found;
    if (first_) found = find_checkpoint(flags_.resume);
    if (ranks_ != nullptr) found.path = ranks_->tell_all(found.path)[0];
    for (const std::string& damage : found.passed_over)
      fmt::print(stderr, "passed over: {}\n", damage);
    resumed_ = found.path;
    if (resumed_.empty()) return;
    if (!found.passed_over.empty()) fmt::print(stderr, "going on from {}\n", resumed_);
    trainer_->load_checkpoint(resumed_);
    last_checkpoint_ = trainer_->steps_done();
    const int64_t before = checkpoint_micro_batches(resumed_);
    const int64_t now = prepared_.subject.strategy.micro_batches;
    if (before != now && first_)
      fmt::print(stderr,
                 "{}: was written with {} micro-batches, this run has {}: it goes on, but not bit "
                 "for bit\n",
                 resumed_, before, now);
  }

  void introduce() const {
    if (flags_.json || !first_) return;
    const Subject& subject = prepared_.subject;
    fmt::print("{}: {} samples a step in {} micro-batch{}\n", subject.facts.model,
               subject.facts.samples, subject.strategy.micro_batches,
               subject.strategy.micro_batches == 1 ? "" : "es");
    fmt::print("  data: {}\n  weights: {}\n", trainer_->describe_data(),
               trainer_->describe_weights());
    if (!resumed_.empty()) fmt::print("  resumed after step {}\n", trainer_->steps_done());
    std::vector<int64_t> peaks;
    const SimulatedStep& predicted = overlap_.predicted(prepared_.step);
    for (const MemoryPeak& peak : predicted.result.peaks) peaks.push_back(peak.bytes);
    fmt::print(
        "  predicted: {} a step on {} device{}, peak {} of {}\n", format_seconds(overlap_.in_row),
        subject.machine.devices.size(), subject.machine.devices.size() == 1 ? "" : "s",
        format_bytes(Bytes(highest_peak(peaks))), format_bytes(subject.machine.devices[0].limit));
    if (const std::string text = overlap_.text(); !text.empty()) fmt::print("  {}\n", text);
  }

  void one_step(Progress& progress) {
    others_.begin();
    if (ranks_ != nullptr) ranks_->be_at(fmt::format("step {}", trainer_->steps_done() + 1));
    const TrainerStep done = trainer_->step();
    if (ranks_ != nullptr) ranks_->be_at({});
    others_.end();
    measured_.add(done.outcome);
    const double seconds = static_cast<double>(done.outcome.time) * 1e-9;
    const double rate = static_cast<double>(prepared_.subject.facts.samples) / seconds;
    std::optional<double> evaluated;
    if (flags_.evaluate_every > 0 && done.step % flags_.evaluate_every == 0) evaluated = evaluate();
    if (!first_) {
    } else if (flags_.json) {
      ordered_json line = {{"step", done.step},
                           {"loss", done.outcome.loss},
                           {"learning_rate", done.learning_rate},
                           {"step_time_s", seconds},
                           {"samples_per_s", rate}};
      add_peaks(done.outcome, line);
      if (prepared_.subject.training.options.clip_norm > 0)
        line["gradient_norm"] = done.outcome.gradient_norm;
      if (evaluated) line["eval_loss"] = *evaluated;
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    } else {
      const double left = seconds * static_cast<double>(flags_.steps - done.step);
      progress.show(fmt::format(
          "{} {}/{}  loss {:.4f}  {:.1f} samples/s  {}  {} left",
          Progress::bar(static_cast<double>(done.step) / static_cast<double>(flags_.steps)),
          done.step, flags_.steps, done.outcome.loss, rate,
          format_bytes(Bytes(highest_peak(done.outcome.peaks))), remaining_time(left)));
      print_now_and_then(done, rate, evaluated);
    }
    if (log_) log_->add(done, seconds, rate, evaluated);
    if (events_) add_events(done, seconds, rate, evaluated);
    if (!flags_.checkpoints.empty() && flags_.checkpoint_every > 0 &&
        done.step % flags_.checkpoint_every == 0)
      checkpoint();
  }

  void add_events(const TrainerStep& done, double seconds, double rate,
                  const std::optional<double>& evaluated) {
    std::vector<std::pair<std::string, double>> values = {
        {"loss/train", done.outcome.loss},
        {"learning_rate", done.learning_rate},
        {"speed/step_time_s", seconds},
        {"speed/samples_per_s", rate},
        {"memory/peak_bytes", static_cast<double>(highest_peak(done.outcome.peaks))}};
    if (prepared_.subject.training.options.clip_norm > 0)
      values.emplace_back("gradient_norm", done.outcome.gradient_norm);
    if (evaluated) values.emplace_back("loss/evaluation", *evaluated);
    events_->add(done.step, values);
  }

  double evaluate() {
    double loss = 0;
    during(ranks_, fmt::format("evaluation after step {}", trainer_->steps_done()),
           [&] { loss = trainer_->evaluate(flags_.evaluate_batches); });
    if (const std::string note = trainer_->evaluation_note(); note != evaluation_note_ && first_) {
      clear_progress();
      fmt::print(stderr, "note: {}\n", printable(note));
      evaluation_note_ = note;
    }
    return loss;
  }

  // Of the device that had most; by memory of the task graph.
  int64_t highest_peak(const std::vector<int64_t>& peaks) const {
    const TaskGraph& tasks = prepared_.step.tasks;
    int64_t highest = 0;
    for (size_t m = 0; m < peaks.size(); ++m)
      if (tasks.memories[m].team.valid()) highest = std::max(highest, peaks[m]);
    return highest;
  }

  void add_peaks(const StepRecord& record, ordered_json& line) const {
    const TaskGraph& tasks = prepared_.step.tasks;
    const Machine& machine = prepared_.subject.machine;
    line["devices"] = ordered_json::array();
    for (size_t d = 0; d < machine.devices.size(); ++d)
      line["devices"].push_back(
          {{"name", machine.devices[d].name}, {"peak_bytes", record.device_peaks[d]}});
    for (size_t m = 0; m < tasks.memories.size(); ++m)
      if (!tasks.memories[m].team.valid()) line["host"] = {{"peak_bytes", record.peaks[m]}};
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
    const int64_t step = trainer_->steps_done();
    const std::string path =
        checkpoint_path(flags_.checkpoints, step, ranks_ == nullptr ? 1 : ranks_->size());
    during(ranks_, fmt::format("checkpoint of step {}", step),
           [&] { trainer_->save_checkpoint(path); });
    if (first_) remove_old_checkpoints(flags_.checkpoints, path, step, 2);
    last_checkpoint_ = step;
  }

  void finish() {
    if (!flags_.save.empty())
      during(ranks_, "saving weights", [&] { trainer_->save_weights(flags_.save); });
    if (!first_) return;
    if (measured_.empty()) {
      if (flags_.json)
        fmt::print("{}\n", ordered_json{{"steps", trainer_->steps_done()}}.dump());
      else
        fmt::print("nothing left to do: {} steps are done\n", trainer_->steps_done());
      return;
    }
    const MeasuredStep measured = measured_.result();
    const SimulatedStep& predicted = overlap_.predicted(prepared_.step);
    const Comparison comparison = compare(predicted, measured, prepared_.subject.machine);
    if (!flags_.trace.empty()) {
      AtomicFile file(flags_.trace);
      write_run_trace(predicted, measured.record, &prepared_.subject.training.graph,
                      prepared_.subject.machine, [&](std::string_view text) { file.write(text); });
      file.commit();
    }
    if (flags_.json) {
      ordered_json json = comparison_json(comparison);
      json["steps"] = trainer_->steps_done();
      if (overlap_.asked > 1) json["overlap"] = overlap_.json();
      if (ranks_ == nullptr) json["other_load"] = others_.share();
      fmt::print("{}\n", json.dump());
      return;
    }
    fmt::print("\n{}", comparison_text(comparison));
    fmt::print("measured: median of the steps after the first; predicted: simulated, {}\n",
               prepared_.subject.facts.provenance);
    if (ranks_ == nullptr && others_.noticed()) fmt::print("meanwhile {}\n", others_.text());
    if (overlap_.row)
      fmt::print("a step's time is from the end of the step before it to its own\n");
  }

  const TrainFlags& flags_;
  const PreparedRun& prepared_;
  Ranks* const ranks_;  // null: alone
  const bool first_;    // prints and writes
  bool stopped_ = false;
  const StepOverlap overlap_;
  std::unique_ptr<Training> trainer_;
  MeasuredSteps measured_;
  OtherLoad others_;  // during steps
  std::optional<StepLog> log_;
  std::optional<EventFile> events_;
  std::string resumed_, evaluation_note_;
  int64_t last_checkpoint_ = -1;
};

}  // namespace

void run_training(const TrainFlags& flags, const PreparedRun& prepared, int threads, Ranks* ranks) {
  TrainingRun(flags, prepared, threads, ranks).run();
}

}  // namespace windlass
