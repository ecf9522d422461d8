#include "windlass/sweep/measured_search.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "windlass/run/step_calibration.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

// The same question, answered by figures.
Problem by_figures(const Problem& problem, const Machine& machine) {
  return {.network = problem.network,
          .machine = machine,
          .training = problem.training,
          .cost = problem.cost,
          .with_slots = problem.with_slots};
}

class MeasuredSearch {
 public:
  MeasuredSearch(const SearchMethod& method, const Problem& problem, const SearchOptions& options)
      : method_(method),
        problem_(problem),
        options_(options),
        limited_(problem.machine),
        seen_(problem.machine, problem.cost) {}

  MeasuredResult run(bool usual) {
    search();
    if (usual && !stopped()) try_usual();
    return finish();
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }
  bool runs() const { return now_.step.result.status == SimStatus::Done; }

  void measure(SearchResult found) {
    now_.search = std::move(found);
    now_.step = simulate_step(now_.search.training, now_.search.strategy, problem_.machine,
                              problem_.cost, {}, problem_.reprice);
    now_.fits = now_.search.termination != Termination::Infeasible;
  }

  void search() {
    constexpr int kTries = 10, kMoreSearches = 2;
    constexpr double kWorthAnother = 0.98;
    int more = 0;
    for (int tries = 0; tries < kTries; ++tries) {
      const Machine machine = seen_.apply(limited_);
      SearchResult found = method_.search(by_figures(problem_, machine), options_);
      tried_ += found.tried;
      proposals_ += found.proposals;
      spent_ += found.seconds;
      measure(std::move(found));
      // What is too large by figures may do all the same.
      if (!now_.fits && runs()) {
        now_.fits = true;
        now_.search.termination = Termination::Feasible;
      }
      if (now_.fits && runs()) {
        const bool gained =
            !best_ || now_.step.step_time() < best_->step.step_time() * kWorthAnother;
        keep_if_faster();
        if (!gained || more++ == kMoreSearches || stopped()) break;
        seen_.add(now_.step.tasks, now_.step.times);
        continue;
      }
      if (best_ || !now_.fits) break;
      seen_.add(now_.step.tasks, now_.step.times);
      lower_limits();
    }
  }

  void keep_if_faster() {
    if (!best_ || now_.step.step_time() < best_->step.step_time()) best_ = now_;
  }

  void lower_limits() {
    constexpr int64_t kLeastPart = 32, kMostPart = 6;
    for (Device& device : limited_.devices) {
      const int64_t limit = device.limit.value;
      const int64_t less =
          std::clamp(now_.step.result.missing_bytes, limit / kLeastPart + 1, limit / kMostPart + 1);
      device.limit = Bytes(std::max<int64_t>(1, limit - less));
    }
  }

  // By figures they are told apart first: those that are far slower are not measured.
  void try_usual() {
    constexpr double kFarSlower = 1.15;
    const Machine machine = seen_.apply(problem_.machine);
    const auto by_known = [&](const TrainingGraph& training, const Strategy& strategy) {
      return simulate_step(training, strategy, machine, problem_.cost);
    };
    std::optional<Seconds> limit;
    if (best_) {
      const SimulatedStep step = by_known(best_->search.training, best_->search.strategy);
      limit = step.step_time() * kFarSlower;
    }
    for (const std::string& name : usual_strategies(problem_.machine.devices.size())) {
      if (stopped()) return;
      const BaselineSpec spec = parse_baseline(name);
      if (spec.virtualise) continue;  // pages at run time: nothing that a search chooses
      try {
        PreparedStep prepared =
            prepare_step(problem_.network, spec, problem_.machine, problem_.training);
        if (limit && by_known(prepared.training, prepared.strategy).step_time() > *limit) continue;
        consider(std::move(prepared));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal || error.kind() == ErrorKind::Runtime) throw;
      }
    }
  }

  void consider(PreparedStep prepared) {
    SearchResult found;
    if (best_) found = best_->search;  // what the search says of itself
    found.termination = Termination::Feasible;
    found.samples = prepared.samples;
    found.training = std::move(prepared.training);
    found.strategy = std::move(prepared.strategy);
    found.in_slots = false;
    found.passed_over.reset();
    ++tried_;
    measure(std::move(found));
    if (runs()) keep_if_faster();
  }

  MeasuredResult finish() {
    if (best_) now_ = std::move(*best_);
    SearchResult& search = now_.search;
    search.tried = tried_;
    search.proposals = proposals_;
    search.seconds = spent_;
    if (now_.fits && !runs()) {
      now_.fits = false;
      search.termination = Termination::Infeasible;
      search.least_limit = now_.step.least_limit;
    }
    search.frontier.clear();  // is of figures, not of measurements
    search.objective.reset();
    search.step_time = now_.step.step_time();
    search.lower_bound = work_bound(problem_);
    if (search.termination == Termination::Optimal) search.termination = Termination::Feasible;
    return std::move(now_);
  }

  const SearchMethod& method_;
  const Problem& problem_;
  const SearchOptions& options_;
  Machine limited_;  // with the limits of the next search
  StepCalibration seen_;
  MeasuredResult now_;
  std::optional<MeasuredResult> best_;
  int64_t tried_ = 0, proposals_ = 0;
  Seconds spent_;
};

}  // namespace

MeasuredResult search_then_measure(const SearchMethod& method, const Problem& problem,
                                   const SearchOptions& options, bool usual) {
  return MeasuredSearch(method, problem, options).run(usual);
}

}  // namespace windlass
