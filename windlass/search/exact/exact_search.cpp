// The fastest sharding by exact elimination over sums of prices, and what it becomes in the
// simulator.
//
// The sum of all times is minimised exactly, once as it stands and once with most of the traffic of
// weights hidden behind computation; then the trade of time against memory is walked from the
// fastest to the most frugal. All of these, and the strategies a user would have named, are
// simulated; the fastest that fits is the answer. The sum knows no overlap and no order, so the
// proof is one of the sum: the bound on the step itself is the work that no sharding avoids.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/exact/frontier.h"
#include "windlass/search/exact/polish.h"
#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {
namespace {

constexpr double kHidden = 0.9;  // of the traffic of weights, in the second solve
// At the usual effort: pairs of options that are priced, cells of one solve; what each counts.
constexpr double kMostPrices = 2e7, kMostCells = 4e8;
constexpr double kPriceUnits = 0.1, kCellUnits = 0.005;
constexpr double kFewDevices = 16;
// Of the trade with recomputation, at the usual effort: cells of one elimination; sums of list
// entries, at full resolution; tasks of the points that are simulated.
constexpr double kMostRecomputeCells = 8e6, kMostFineSums = 2e7, kMostPointTasks = 1e5;
constexpr int64_t kAskEvery = 1024;  // prices

class ExactSearch {
 public:
  ExactSearch(Ledger& ledger, const std::vector<DeviceId>& devices, SearchResult& facts, bool alone)
      : ledger_(ledger),
        devices_(devices),
        facts_(facts),
        alone_(alone),
        cuts_(std::max<int64_t>(1, ledger.options().micro_batches)),
        cut_(ledger.cut(cuts_)) {}

  void run() {
    const ShardingProblem sharding = priced({.devices = devices_});
    if (!sharding.complete) ledger_.cut_short(false);
    solve(sharding);
    try_baselines();
    polish_best(sharding);
    least_work_ = sharding.least_work();
    if (cut_.training.unequal) forget_facts();
  }

  // Nanoseconds that some device computes in any case.
  double least_work() const { return least_work_; }

 private:
  const Problem& problem() const { return ledger_.problem(); }
  ShardingProblem priced(ShardingProblemOptions options) {
    // Prices at most; the rest of the effort is for solving and simulating. Of many devices each
    // looks at what each other one has.
    const double crowd = std::max(1.0, static_cast<double>(devices_.size()) / kFewDevices);
    const double each = alone_ ? 1 : crowd * crowd;
    const auto most = static_cast<int64_t>(kMostPrices * ledger_.options().effort / each);
    int64_t asked = 0;
    options.out_of_time = [&] {
      return ++asked > most || (asked % kAskEvery == 0 && ledger_.interrupted());
    };
    ShardingProblem made =
        make_sharding_problem(cut_.training, problem().machine, problem().cost, cuts_, options);
    ledger_.charge(kPriceUnits * each * static_cast<double>(asked));
    return made;
  }
  EliminationOptions elimination() const {
    EliminationOptions options;
    const SearchOptions& given = ledger_.options();
    options.time_limit = Seconds(std::max(0.05, given.time_limit.value - ledger_.elapsed()));
    options.most_cells = kMostCells * given.effort;
    options.threads = given.threads;
    return options;
  }
  EliminationResult solved(const ParetoNetwork& network) {
    EliminationResult result = minimise(weighted(network, {}), elimination());
    ledger_.charge(kCellUnits * result.cells_computed);
    if (result.out_of_time) ledger_.cut_short(true);
    if (result.out_of_cells) ledger_.cut_short(false);
    return result;
  }

  // The sums take all micro-batches for as large as the first: of the step they prove nothing.
  void forget_facts() {
    facts_.objective = facts_.objective_bound = std::nullopt;
    facts_.frontier_exact = false;
    least_work_ = 0;
  }

  void solve(const ShardingProblem& sharding) {
    const ParetoNetwork plain = sharding.network();
    const EliminationResult best = solved(plain);
    facts_.objective = Seconds(best.cost * 1e-9);
    facts_.objective_bound = Seconds(best.bound * 1e-9);
    facts_.largest_table = best.largest_table;
    facts_.out_of_time = best.out_of_time || best.out_of_cells || !sharding.complete;
    facts_.options = best.options;
    consider(sharding, with_variants(plain, best.choice, {}));
    const ParetoNetwork hidden = sharding.network(kHidden);
    const EliminationResult other = solved(hidden);
    consider(sharding, with_variants(hidden, other.choice, {}));
    // Less memory takes more time: where the fastest shardings are far behind what other methods
    // found, so is the rest.
    constexpr double kFarBehind = 1.15;
    if (ledger_.fits() &&
        static_cast<double>(fastest_) > kFarBehind * static_cast<double>(ledger_.best_time()))
      return;
    // Beside other methods it is of no use where the fastest sharding fits as it is.
    if (!alone_ && best_ && best_->time <= fastest_) return;
    if (ledger_.fits() && ledger_.interrupted()) return;
    walk_frontier(sharding, best.options);
  }

  // The frontier of the sums; small problems have all of it. What is least with recomputation need
  // not be in the simulator, where what is made again lives too: so it comes beside the other one.
  void walk_frontier(const ShardingProblem& plain, int64_t options) {
    FrontierOptions frontier;
    frontier.elimination = elimination();
    frontier.resolution = std::max(1.0, best_bytes_ / 4096);
    frontier.budget = 2e7;
    // Each price is a solve of its own.
    constexpr int64_t kManyOptions = 15000;
    if (options > kManyOptions) frontier.most_prices = 10;
    constexpr size_t kMostPoints = 48;
    const Frontier once = find_frontier(plain.network(), frontier);
    consider(plain, once, kMostPoints);
    const std::optional<ShardingProblem> again = with_recompute(plain);
    if (!again) return;
    const ParetoNetwork network = again->network();
    Frontier found;
    if (once.exact) {
      FrontierOptions fine = frontier;
      fine.resolution = 1;
      fine.budget = kMostFineSums * ledger_.options().effort;
      found = {.choices = exact_frontier(network, fine), .exact = true};
      if (found.choices.empty()) found = find_frontier(network, frontier);
    } else {
      found = convex_frontier(network, frontier);
    }
    facts_.frontier_recompute = true;
    // Nothing was simulated where decisions rule everything out.
    if (cut_.evaluator->evaluations() == 0) return consider(*again, found, kMostPoints);
    const auto tasks = static_cast<double>(std::max<size_t>(1, cut_.evaluator->tasks()));
    const double affordable = kMostPointTasks * ledger_.options().effort / tasks;
    consider(*again, found, std::max(kMostPoints, static_cast<size_t>(affordable)));
  }

  void consider(const ShardingProblem& sharding, const Frontier& found, size_t most) {
    facts_.frontier_exact = found.exact;
    facts_.frontier_resolution = Bytes(static_cast<int64_t>(found.resolution));
    const size_t step = std::max<size_t>(1, (found.choices.size() + most - 1) / most);
    for (size_t i = 0; i < found.choices.size(); ++i)
      if (i % step == 0 || i + 1 == found.choices.size()) consider(sharding, found.choices[i]);
  }

  // The problem with recomputation of single ops among the options, where its tables are small.
  std::optional<ShardingProblem> with_recompute(const ShardingProblem& plain) {
    if (ledger_.options().fixed.recompute == RecomputePolicy::None) {
      facts_.recompute_left_out = "ruled out";
      return std::nullopt;
    }
    const double cells = cells_with_recompute(cut_.training, plain);
    const double most = kMostRecomputeCells * ledger_.options().effort;
    if (cells > most) {
      facts_.recompute_left_out = cells == std::numeric_limits<double>::infinity()
                                      ? "views of weights or copies"
                                      : fmt::format("{:.2g} cells, more than {:.2g}", cells, most);
      return std::nullopt;
    }
    ShardingProblem again = priced({.devices = devices_, .recompute = true});
    if (again.complete) return again;
    facts_.recompute_left_out = "not all moves were priced";
    return std::nullopt;
  }

  static bool recomputes(const Strategy& strategy) {
    return std::ranges::find(strategy.saved, MemoryAction::Recompute) != strategy.saved.end();
  }

  void consider(const ShardingProblem& sharding, const ParetoChoice& choice) {
    best_bytes_ = std::max(best_bytes_, choice.cost.bytes);
    Strategy strategy = sharding.strategy(cut_.training, choice);
    strategy.micro_batches = cuts_;
    // What the checker refuses would crowd out of the book what was found without recomputation.
    if (recomputes(strategy) && ledger_.refused({strategy, cuts_, 0})) return;
    simulate(std::move(strategy));
  }

  void try_baselines() {
    std::vector<std::string> names = {"data-parallel", "one-weird-trick", "zero:stage=3"};
    const auto devices = static_cast<int64_t>(devices_.size());
    for (int64_t tp = 2; tp <= std::min<int64_t>(8, devices); tp *= 2)
      if (devices % tp == 0) names.push_back("megatron:tp=" + std::to_string(tp));
    for (const std::string& name : names)
      if (auto strategy = ledger_.named(parse_baseline(name), cuts_, devices_))
        simulate(std::move(*strategy));
  }

  void simulate(Strategy strategy) {
    if (ledger_.fits() && ledger_.over()) return;  // there is an answer
    ledger_.report();
    const Evaluation inside = ledger_.consider(strategy, cuts_);
    if (all_.empty() || inside.free_time < fastest_) fastest_ = inside.free_time;
    if (inside.fits && (!best_ || inside.time < best_->time))
      best_ = Ledger::Entry{strategy, cuts_, inside.time};
    all_.push_back(std::move(strategy));
  }

  // The best of this search, which need not be that of all methods.
  void polish_best(const ShardingProblem& sharding) {
    if (!best_) return;
    // Steps of few tasks are simulated often, those of many seldom.
    const double tasks = 6e5 * std::max(0.1, ledger_.options().effort);
    PolishOptions options;
    options.evaluations =
        static_cast<int64_t>(tasks / static_cast<double>(cut_.evaluator->tasks()));
    options.out_of_time = [this] { return ledger_.over(); };
    best_->time = polish(cut_.training, sharding, all_, *cut_.evaluator, best_->strategy,
                         best_->time, options);
    ledger_.add(best_->strategy, cuts_, best_->time);
  }

  Ledger& ledger_;
  const std::vector<DeviceId>& devices_;
  SearchResult& facts_;
  const bool alone_;
  const int64_t cuts_;
  Cut& cut_;
  std::vector<Strategy> all_;  // simulated
  std::optional<Ledger::Entry> best_;
  Nanoseconds fastest_ = 0;  // of the simulated, without limits
  double best_bytes_ = 0, least_work_ = 0;
};

}  // namespace

void run_exact(Ledger& ledger, const std::vector<DeviceId>& devices, SearchResult& facts,
               bool alone) {
  ledger.begin(ledger.beside_answer() ? "exact search on fewer devices" : "exact search",
               kExactUnits);
  // Its tables alone take time.
  if (!alone && ledger.fits() && ledger.interrupted()) return;
  ExactSearch search(ledger, devices, facts, alone);
  search.run();
  facts.lower_bound = step_time(ledger.problem(), static_cast<Nanoseconds>(search.least_work()));
}

SearchResult search_exact(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  SearchResult facts;
  run_exact(ledger, all_devices(problem.machine), facts, true);
  SearchResult result = ledger.finish();
  take_exact_facts(result, facts);
  result.lower_bound = facts.lower_bound;
  if (result.termination == Termination::Feasible && facts.out_of_time)
    result.termination = Termination::Limit;
  else if (result.termination == Termination::Feasible && result.objective &&
           result.objective == result.objective_bound)
    result.termination = Termination::Optimal;
  return result;
}

void take_exact_facts(SearchResult& result, const SearchResult& facts) {
  result.objective = facts.objective;
  result.objective_bound = facts.objective_bound;
  result.largest_table = facts.largest_table;
  result.options = facts.options;
  result.out_of_time = facts.out_of_time;
  result.frontier_exact = facts.frontier_exact;
  result.frontier_resolution = facts.frontier_resolution;
  result.frontier_recompute = facts.frontier_recompute;
  result.recompute_left_out = facts.recompute_left_out;
}

}  // namespace windlass
