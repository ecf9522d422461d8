// The fastest sharding by exact elimination over sums of prices, and what it becomes in the
// simulator.
//
// The sum of all times is minimised exactly, once as it stands and once with most of the traffic of
// weights hidden behind computation; then the trade of time against memory is walked from the
// fastest to the most frugal. All of these, and the strategies a user would have named, are
// simulated; the fastest that fits is the answer. The sum knows no overlap and no order, so the
// proof is one of the sum: the bound on the step itself is the work that no sharding avoids.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/search/evaluate.h"
#include "windlass/search/exact/frontier.h"
#include "windlass/search/polish.h"
#include "windlass/search/sharding/sharding_problem.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kHidden = 0.9;  // of the traffic of weights, in the second solve

class ExactSearch {
 public:
  ExactSearch(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), start_(Clock::now()) {}

  SearchResult run() {
    batch_ = find_batch(problem_.network);
    const int64_t cuts = std::max<int64_t>(1, options_.micro_batches);
    result_.samples = batch_.samples;
    const bool whole = cuts == 1;
    const Graph part = whole ? Graph{} : cut_batch(problem_.network, batch_, cuts);
    if (!whole) batch_ = find_batch(part);
    result_.training = differentiate(whole ? problem_.network : part, problem_.training);
    evaluator_.emplace(problem_, result_.training);
    // Half of the time at most for prices; the rest is for solving and simulating.
    const double prices = options_.time_limit.value / 2;
    const ShardingProblem sharding =
        make_sharding_problem(result_.training, problem_.machine, problem_.cost, cuts,
                              {.out_of_time = [&] { return left() < prices; }});
    solve(sharding, cuts);
    try_baselines(cuts);
    polish_best(sharding);
    finish(sharding);
    return std::move(result_);
  }

 private:
  double left() const {
    const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
    return options_.time_limit.value - spent;
  }
  EliminationOptions elimination() const {
    EliminationOptions options;
    options.time_limit = Seconds(std::max(0.05, left()));
    options.threads = options_.threads;
    return options;
  }

  void solve(const ShardingProblem& sharding, int64_t cuts) {
    const ParetoNetwork plain = sharding.network();
    const EliminationResult best = minimise(weighted(plain, {}), elimination());
    result_.objective = Seconds(best.cost * 1e-9);
    result_.objective_bound = Seconds(best.bound * 1e-9);
    result_.largest_table = best.largest_table;
    result_.out_of_time = best.out_of_time || !sharding.complete;
    result_.options = best.options;
    consider(sharding, with_variants(plain, best.choice, {}), cuts);
    const ParetoNetwork hidden = sharding.network(kHidden);
    const EliminationResult other = minimise(weighted(hidden, {}), elimination());
    consider(sharding, with_variants(hidden, other.choice, {}), cuts);
    // The frontier of the sums; small problems have all of it.
    FrontierOptions frontier;
    frontier.elimination = elimination();
    frontier.resolution = std::max(1.0, best_bytes_ / 4096);
    frontier.budget = 2e7;
    // Each price is a solve of its own.
    constexpr int64_t kManyOptions = 15000;
    if (best.options > kManyOptions) frontier.most_prices = 10;
    const Frontier found = find_frontier(plain, frontier);
    result_.frontier_exact = found.exact;
    result_.frontier_resolution = Bytes(static_cast<int64_t>(frontier.resolution));
    constexpr size_t kMostPoints = 48;
    const size_t step = std::max<size_t>(1, (found.choices.size() + kMostPoints - 1) / kMostPoints);
    for (size_t i = 0; i < found.choices.size(); ++i)
      if (i % step == 0 || i + 1 == found.choices.size())
        consider(sharding, found.choices[i], cuts);
  }

  void consider(const ShardingProblem& sharding, const ParetoChoice& choice, int64_t cuts) {
    best_bytes_ = std::max(best_bytes_, choice.cost.bytes);
    Strategy strategy = sharding.strategy(result_.training, problem_.machine, choice);
    strategy.micro_batches = cuts;
    simulate(std::move(strategy));
  }

  void try_baselines(int64_t cuts) {
    std::vector<std::string> names = {"data-parallel", "one-weird-trick", "zero:stage=3"};
    const auto devices = static_cast<int64_t>(problem_.machine.devices.size());
    for (int64_t tp = 2; tp <= std::min<int64_t>(8, devices); tp *= 2)
      if (devices % tp == 0) names.push_back("megatron:tp=" + std::to_string(tp));
    for (const std::string& name : names) {
      try {
        BaselineSpec spec = parse_baseline(name);
        spec.micro_batches = cuts;
        resolve(spec, problem_.machine, result_.samples);
        simulate(make_baseline(spec, result_.training, batch_, problem_.machine));
      } catch (const Error& error) {
        // Not every named strategy is one for every model.
        if (error.kind() == ErrorKind::Internal) throw;
      }
    }
  }

  // Simulates a strategy without limits: its time and peak are a point of the frontier. If the peak
  // is above the limit, it may still run inside, waiting for memory.
  void simulate(Strategy strategy) {
    if (left() < 0 && fits_) return;  // there is an answer
    const Evaluation free = evaluator_->evaluate_unlimited(strategy);
    const std::optional<int64_t> least = evaluator_->least_limit(strategy);
    if (!least) return;  // the host is too small
    points_.emplace_back(free.peak, free.time);
    all_.push_back(strategy);
    const Evaluation inside = evaluator_->evaluate(strategy);
    if (!least_limit_ || *least < *least_limit_) {
      least_limit_ = *least;
      if (!fits_) best_ = strategy;
    }
    if (inside.fits && (!fits_ || inside.time < best_time_)) {
      fits_ = true;
      best_time_ = inside.time;
      best_ = std::move(strategy);
    }
    if (options_.progress)
      options_.progress(evaluator_->evaluations(),
                        fits_ ? std::optional(step_time(problem_, best_time_)) : std::nullopt);
  }

  void polish_best(const ShardingProblem& sharding) {
    if (!fits_) return;
    // Steps of few tasks are simulated often, those of many seldom.
    constexpr double kTasks = 3e6;
    PolishOptions options;
    options.evaluations = static_cast<int64_t>(kTasks / static_cast<double>(evaluator_->tasks()));
    options.out_of_time = [this] { return left() < 0; };
    best_time_ = polish(result_.training, sharding, all_, *evaluator_, best_, best_time_, options);
    const Evaluation free = evaluator_->evaluate_unlimited(best_);
    points_.emplace_back(free.peak, free.time);
  }

  void finish(const ShardingProblem& sharding) {
    result_.strategy = std::move(best_);
    if (least_limit_) result_.least_limit = Bytes(*least_limit_);
    result_.step_time = step_time(problem_, best_time_);
    result_.lower_bound = step_time(problem_, static_cast<Nanoseconds>(sharding.least_work()));
    result_.tried = evaluator_->evaluations();
    result_.frontier =
        frontier_of(points_, [&](Nanoseconds time) { return step_time(problem_, time); });
    if (!fits_)
      result_.termination = Termination::Infeasible;
    else if (result_.out_of_time || left() < 0)
      result_.termination = Termination::Limit;
    else
      result_.termination = result_.objective == result_.objective_bound ? Termination::Optimal
                                                                         : Termination::Feasible;
    result_.seconds = Seconds(std::chrono::duration<double>(Clock::now() - start_).count());
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Clock::time_point start_;
  BatchAxes batch_;
  SearchResult result_;
  std::optional<Evaluator> evaluator_;
  std::vector<Strategy> all_;                            // simulated
  std::vector<std::pair<int64_t, Nanoseconds>> points_;  // peak and time without limits
  std::optional<int64_t> least_limit_;
  Strategy best_;
  Nanoseconds best_time_ = 0;
  double best_bytes_ = 0;
  bool fits_ = false;
};

}  // namespace

SearchResult search_exact(const Problem& problem, const SearchOptions& options) {
  return ExactSearch(problem, options).run();
}

}  // namespace windlass
