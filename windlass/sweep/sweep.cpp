#include "windlass/sweep/sweep.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cost/cost_model.h"
#include "windlass/model/model.h"
#include "windlass/run/batch_lines.h"
#include "windlass/search/advice/memory_methods.h"
#include "windlass/sweep/step_profile.h"
#include "windlass/sweep/sweep_models.h"

namespace windlass {
namespace {

constexpr const char* kMixture = "mixture";
constexpr const char* kSweptMethods[] = {"plain", "recompute", "offload", "compress-4"};
constexpr int64_t kMostBatch = 256;
// A point is timed for so long at most in a round, once it has been timed three times.
constexpr double kMostSeconds = 4;
constexpr int64_t kLeastTimed = 3;
// Steps of a run that do not count: in a memory that is full, blocks need some to find their
// places. Fewer if they take long.
constexpr int64_t kSettling = 14;
constexpr Nanoseconds kMostSettling = 1'000'000'000;

// The median of the faster half: whatever else runs on the host only ever adds.
Seconds usual_time(std::vector<Nanoseconds> times) {
  std::ranges::sort(times);
  const size_t half = (times.size() + 1) / 2;
  return Seconds(static_cast<double>(times[(half - 1) / 2]) * 1e-9);
}

struct RunnableStep {
  TrainingGraph training;
  Strategy strategy;
};

class ModelSweep {
 public:
  ModelSweep(const SweepSource& source, const Machine& machine, const CostModel& cost,
             const SweepOptions& options)
      : source_(source),
        machine_(machine),
        limited_(machine),
        options_(options),
        profile_(options.threads, 1),
        small_(prepare_method("plain", problem(machine_, cost), source.batches.front()).training),
        large_(prepare_method("plain", problem(machine_, cost), source.batches.back()).training),
        lines_(profile_, small_, large_),
        cost_(cost) {}

  SweepModel run(const std::function<void(const std::string&)>& say) {
    SweepModel model;
    model.name = source_.name;
    model.profiled = {source_.batches.front(), source_.batches.back()};
    say("profiling");
    profile_in_rounds();
    if (!stopped()) profile_steps();
    model.limit =
        predict(step_of("plain", source_.batches[source_.batches.size() / 2]), machine_).point.peak;
    for (Device& device : limited_.devices) device.limit = model.limit;
    if (stopped()) return model;
    for (const char* method : kSweptMethods)
      for (int64_t batch : source_.batches) add_point(method, batch);
    add_mixtures();
    for (int64_t round = 0; round < options_.rounds; ++round)
      for (Planned& planned : planned_) {
        if (stopped()) break;
        say(fmt::format("{}, {} samples, round {} of {}", planned.method, planned.batch, round + 1,
                        options_.rounds));
        measure(planned, options_.steps);
      }
    add_groups(model);
    for (SweepGroup& group : model.groups)
      if (group.method != kMixture && !stopped()) find_largest(say, model.limit, group);
    return model;
  }

 private:
  struct Predicted {
    SimulatedStep step;
    BatchPoint point;
  };

  // A point of the sweep with all that was measured of it so far.
  struct Planned {
    std::string method;
    int64_t batch;
    RunnableStep step;
    Predicted predicted;
    bool fits;  // inside of the limit, as predicted; else it is carried out without one
    std::vector<Nanoseconds> times = {};
    Bytes peak = {};
  };

  bool stopped() const { return options_.stop && options_.stop(); }

  Model load(int64_t batch) const {
    ModelOptions options;
    options.batch = batch;
    if (source_.sequence > 0) options.sequence = source_.sequence;
    if (source_.image > 0) options.image = source_.image;
    return load_model(source_.source, options);
  }

  BatchProblem problem(const Machine& machine, const CostModel& cost) {
    return {.network = [this](int64_t batch) { return load(batch).graph; },
            .machine = machine,
            .training = {},
            .cost = cost,
            .reprice = {}};
  }

  static Reprice reprice(BatchLines& lines) {
    return [&lines](const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times) {
      lines.reprice(training, tasks, times);
    };
  }

  RunnableStep step_of(const std::string& method, int64_t batch) {
    PreparedStep step = prepare_method(method, problem(limited_, cost_), batch);
    return {std::move(step.training), std::move(step.strategy)};
  }

  // What search finds inside of the limit, without compression; none if nothing fits.
  std::optional<RunnableStep> mixture_of(int64_t batch) {
    const Graph network = load(batch).graph;
    SearchResult found = search_one_device({.network = network,
                                            .machine = limited_,
                                            .training = {},
                                            .cost = cost_,
                                            .reprice = reprice(lines_)},
                                           {.time_limit = Seconds(5), .micro_batches = 1});
    if (found.termination == Termination::Infeasible) return std::nullopt;
    return RunnableStep{std::move(found.training), std::move(found.strategy)};
  }

  Predicted predict(const RunnableStep& step, const Machine& machine) {
    return predict(step, machine, lines_);
  }
  Predicted predict(const RunnableStep& step, const Machine& machine, BatchLines& lines) {
    Predicted made;
    made.step = simulate_step(step.training, step.strategy, machine, cost_, {}, reprice(lines));
    made.point.fits = made.step.result.status == SimStatus::Done;
    made.point.time = made.step.step_time();
    const SimResult& whole = made.step.whole();
    for (size_t m = 0; m < made.step.tasks.memories.size(); ++m)
      if (made.step.tasks.memories[m].team.valid())
        made.point.peak = std::max(made.point.peak, Bytes(whole.peaks[m].bytes));
    return made;
  }

  // Other guests of the host slow it down for a second or so at a time, and a kernel is measured in
  // much less: each is measured in several rounds over all of them, and the best round counts.
  void profile_in_rounds() {
    std::map<std::string, MeasuredKernel> best;
    for (int64_t round = 0; round < options_.rounds && !stopped(); ++round) {
      KernelProfile profile(options_.threads, 1);
      BatchLines lines(profile, small_, large_);
      for (const char* method : kSweptMethods)
        predict(step_of(method, source_.batches.front()), machine_, lines);
      for (const MeasuredKernel& kernel : profile.measured()) {
        const auto [known, is_new] = best.try_emplace(kernel.kernel, kernel);
        if (is_new) continue;
        known->second.time_ns = std::min(known->second.time_ns, kernel.time_ns);
        known->second.workspace_bytes =
            std::max(known->second.workspace_bytes, kernel.workspace_bytes);
      }
    }
    std::vector<MeasuredKernel> kernels;
    for (auto& [key, kernel] : best) kernels.push_back(std::move(kernel));
    profile_.remember(kernels);
  }

  // The plain step at both batches, carried out: kernels take more after others than by themselves,
  // most of all those that run once in a step, whose code nothing has kept near.
  void profile_steps() {
    struct Plain {
      int64_t batch;
      RunnableStep step;
      Predicted predicted;
    };
    std::vector<Plain> plain;
    std::vector<StepProfile> profiles;
    for (int64_t batch : {source_.batches.front(), source_.batches.back()}) {
      RunnableStep step = step_of("plain", batch);
      Predicted predicted = predict(step, machine_);
      plain.push_back({batch, std::move(step), std::move(predicted)});
    }
    for (const Plain& own : plain)
      profiles.emplace_back(own.step.training, own.predicted.step.tasks, own.predicted.step.times);
    for (int64_t round = 0; round < options_.rounds && !stopped(); ++round)
      for (size_t i = 0; i < plain.size(); ++i)
        carry_out(plain[i].batch, plain[i].step, plain[i].predicted.step, machine_, options_.steps,
                  [&](const StepOutcome& outcome, bool counts) {
                    if (counts) profiles[i].add(outcome);
                  });
    if (stopped()) return;
    double updates = 0;
    std::vector<MeasuredKernel> kernels;
    for (const StepProfile& profile : profiles) {
      std::ranges::move(profile.kernels(profile_), std::back_inserter(kernels));
      updates += profile.updates() / static_cast<double>(profiles.size());
    }
    profile_.correct(kernels, updates);
  }

  void add_point(const std::string& method, int64_t batch) {
    RunnableStep step = step_of(method, batch);
    Predicted predicted = predict(step, limited_);
    const bool fits = predicted.point.fits;
    if (!fits) predicted = predict(step, machine_);
    planned_.push_back({method, batch, std::move(step), std::move(predicted), fits});
  }

  // Where plain training fits it is the best: nothing that saves memory makes a step faster.
  void add_mixtures() {
    for (int64_t batch : source_.batches) {
      if (find("plain", batch)->fits) continue;
      auto found = mixture_of(batch);
      if (!found) continue;
      Predicted predicted = predict(*found, limited_);
      planned_.push_back({kMixture, batch, std::move(*found), std::move(predicted), true});
    }
  }

  const Planned* find(const std::string& method, int64_t batch) const {
    for (const Planned& planned : planned_)
      if (planned.method == method && planned.batch == batch) return &planned;
    return nullptr;
  }

  // So many steps count, after those that do not. None: one step, which does not.
  void carry_out(int64_t batch, const RunnableStep& step, const SimulatedStep& simulated,
                 const Machine& machine, int64_t steps,
                 const std::function<void(const StepOutcome&, bool counts)>& done) {
    TrainerOptions options;
    options.executor.threads = options_.threads;
    const Model model = load(batch);
    const auto run = open_runtime().train(model, step.training, simulated, machine, options);
    const auto next = [&](bool counts) {
      const TrainerStep made = run->step();
      done(made.outcome, counts);
      return made.outcome.time;
    };
    Nanoseconds settling = next(false);
    for (int64_t i = 1; i < kSettling && steps > 0 && settling < kMostSettling; ++i)
      settling += next(false);
    double spent = 0;
    for (int64_t i = 0; i < steps && !(stopped() && i > 0); ++i) {
      spent += static_cast<double>(next(true)) * 1e-9;
      if (spent > kMostSeconds && i + 1 >= kLeastTimed) break;
    }
  }

  void measure(Planned& planned, int64_t steps) {
    carry_out(planned.batch, planned.step, planned.predicted.step,
              planned.fits ? limited_ : machine_, steps,
              [&](const StepOutcome& outcome, bool counts) {
                for (int64_t peak : outcome.device_peaks)
                  planned.peak = std::max(planned.peak, Bytes(peak));
                if (counts) planned.times.push_back(outcome.time);
              });
  }

  // The peak of one step that is carried out.
  Bytes measured_peak(const std::string& method, int64_t batch, bool limited) {
    RunnableStep step = step_of(method, batch);
    Predicted predicted = predict(step, limited ? limited_ : machine_);
    Planned planned{method, batch, std::move(step), std::move(predicted), limited};
    measure(planned, 0);
    return planned.peak;
  }

  std::optional<SweepPoint> point_of(const Planned* planned, Bytes limit) const {
    if (planned == nullptr || planned->times.empty()) return std::nullopt;
    SweepPoint point;
    point.predicted = planned->predicted.point;
    point.predicted.batch = point.measured.batch = planned->batch;
    point.predicted.fits = planned->fits;
    point.measured.peak = planned->peak;
    point.measured.time = usual_time(planned->times);
    point.measured.fits = planned->fits || planned->peak <= limit;
    point.profiled = planned->method == "plain" && (planned->batch == source_.batches.front() ||
                                                    planned->batch == source_.batches.back());
    return point;
  }

  void add_groups(SweepModel& model) const {
    std::vector<std::string> methods(std::begin(kSweptMethods), std::end(kSweptMethods));
    methods.emplace_back(kMixture);
    for (const std::string& method : methods) {
      SweepGroup group;
      group.model = source_.name;
      group.method = method;
      for (int64_t batch : source_.batches) {
        const Planned* planned = find(method, batch);
        if (planned == nullptr && method == kMixture) {
          planned = find("plain", batch);
          if (!planned->fits) continue;
        }
        if (auto point = point_of(planned, model.limit)) group.points.push_back(*point);
      }
      if (!group.points.empty()) model.groups.push_back(std::move(group));
    }
  }

  void find_largest(const std::function<void(const std::string&)>& say, Bytes limit,
                    SweepGroup& group) {
    say(group.method + ", largest batch");
    const auto fits = [&](int64_t batch) {
      return predict(step_of(group.method, batch), limited_).point.fits;
    };
    // One sample alone may be another graph: sizes of 1 are simplified away.
    int64_t good = source_.batches.front(), bad = 0;
    if (!fits(good)) return;
    while (bad == 0 && good < kMostBatch && !stopped()) {
      const int64_t next = std::min(2 * good, kMostBatch);
      (fits(next) ? good : bad) = next;
    }
    while (bad > good + 1 && !stopped()) {
      const int64_t middle = good + (bad - good) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    if (bad == 0 || stopped()) return;
    group.largest = good;
    try {
      group.largest_runs = measured_peak(group.method, good, true) <= limit;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::OutOfMemory) throw;
      group.largest_runs = false;
    }
    // With a limit, copies wait for memory: what offload takes without one says nothing.
    if (group.method == "offload") return;
    group.next_exceeds = measured_peak(group.method, bad, false) > limit;
  }

  const SweepSource& source_;
  const Machine& machine_;
  Machine limited_;
  const SweepOptions& options_;
  KernelProfile profile_;
  const TrainingGraph small_, large_;
  BatchLines lines_;
  const CostModel& cost_;
  std::vector<Planned> planned_;
};

}  // namespace

MeasuredSweep run_sweep(const SweepOptions& options) {
  std::vector<const SweepSource*> chosen;
  std::vector<std::string> names;
  for (const SweepSource& source : sweep_sources()) {
    names.emplace_back(source.name);
    const bool named = !options.only.empty() && names.back().starts_with(options.only);
    if (named || (options.only.empty() && source.quick != options.full)) chosen.push_back(&source);
  }
  if (chosen.empty())
    fail_input("--only {}: no model of the sweep is called so{}; there are {}", options.only,
               did_you_mean(options.only, names), join(names, ", "));
  const Machine& machine = options.machine;
  AnalyticOptions analytic;
  analytic.step_issue = 0;
  analytic.product_workspace = {};
  analytic.blocked_convolutions = true;
  const auto cost = analytic_cost_model(analytic);
  MeasuredSweep sweep;
  sweep.machine = fmt::format("{}, {} thread{}", machine.description, options.threads,
                              options.threads == 1 ? "" : "s");
  sweep.provenance =
      "the plain step at two batches with its kernels, updates and compression by size";
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (options.stop && options.stop()) break;
    const auto say = [&](const std::string& what) {
      if (options.progress)
        options.progress(fmt::format("{}: {}", chosen[i]->name, what),
                         static_cast<double>(i) / static_cast<double>(chosen.size()));
    };
    sweep.models.push_back(ModelSweep(*chosen[i], machine, *cost, options).run(say));
  }
  return sweep;
}

}  // namespace windlass
