#include "windlass/search/chain/chain_search.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "windlass/search/book/strategy_hash.h"
#include "windlass/search/chain/policies.h"

namespace windlass {
namespace {

// Points of a list closer than this part of everything kept are one.
constexpr int64_t kResolution = 1024;
// The same where the simulator decides, and for a first estimate.
constexpr int64_t kProbing = 320, kCoarse = 48;
// Longer runs of pieces are hardly ever worth it: all of it is live at once when it is run again.
constexpr size_t kLongestPass = 16;
// Steps that take so much longer than one without limits are worth a second and a third look.
constexpr double kNotFree = 1.003, kSlow = 1.15;
// Inside of a limit, waiting may lower what is live beside the saved tensors, but not by so much.
constexpr double kHopeless = 1.1;
// Backward ops ahead that offloaded tensors are fetched where memory is short.
constexpr int32_t kLatePrefetch = 2;

// Solved chains without their floors, by all that is in them.
using SolvedChains = std::map<std::vector<int64_t>, std::shared_ptr<const ChainSolver>>;

std::vector<int64_t> content_of(const Chain& chain, int64_t resolution) {
  std::vector<int64_t> list = {resolution, chain.in_flight, chain.link_unit, chain.unit_time,
                               chain.most_units};
  for (const ChainBlock& block : chain.blocks) {
    const auto options = static_cast<int64_t>(block.options.size());
    list.insert(list.end(), {options, block.input, block.pass, block.pass_bytes});
    for (const ChainOption& option : block.options)
      list.insert(list.end(), {option.forward, option.backward, option.kept, option.forward_bytes,
                               option.backward_bytes, option.sent, option.sends_output ? 1 : 0,
                               option.first ? 1 : 0, option.again ? 1 : 0});
  }
  return list;
}

class Planner {
 public:
  // `solved`: chains that were solved before, and where this one's go.
  Planner(const TrainingGraph& training, const Strategy& base, Evaluator& evaluator,
          const ChainSearchOptions& options, int64_t resolution, SolvedChains& solved)
      : base_(base), profile_(profile_chain(training, base, evaluator, options)) {
    for (const GroupChain& group : profile_.groups) {
      int64_t all = 0;
      for (const ChainBlock& block : group.chain.blocks) all += block.options.front().kept;
      Chain chain = group.chain;
      chain.floor = 0;
      auto& solver = solved[content_of(chain, all / resolution)];
      if (!solver)
        solver = std::make_shared<const ChainSolver>(
            chain,
            ChainSolverOptions{.resolution = all / resolution, .longest_pass = kLongestPass});
      solvers_.push_back(solver);
      // What needs less than the floor needs that much: the fastest of it stays.
      std::vector<ChainCost>& list = frontiers_.emplace_back();
      for (const ChainCost& cost : solver->frontier()) {
        const int64_t bytes = std::max(cost.bytes, group.chain.floor);
        if (!list.empty() && list.back().bytes == bytes) list.pop_back();
        list.push_back({cost.time, bytes});
      }
    }
    at_start_ = evaluator.at_start();
  }

  // Whether what is there from the start fits: no action on saved tensors helps if it does not.
  bool fits_at_start(const Machine& machine) const { return at_start_.fit(machine, base_); }

  bool empty() const { return solvers_.empty(); }
  size_t groups() const { return solvers_.size(); }
  int32_t group(size_t g) const { return profile_.groups[g].group; }
  int64_t floor(size_t g) const { return profile_.groups[g].chain.floor; }
  Nanoseconds makespan() const { return profile_.makespan; }
  int32_t prefetch() const { return profile_.prefetch; }
  const Strategy& base() const { return base_; }
  // Whether the chain decides about a saved tensor.
  const std::vector<bool>& decides() const { return profile_.decides; }
  const std::vector<ChainCost>& frontier(size_t g) const { return frontiers_[g]; }

  // What the step takes inside of the limits, without the schedule.
  Nanoseconds time_at(const std::vector<int64_t>& limits) const {
    Nanoseconds slowest = 0;
    for (size_t g = 0; g < solvers_.size(); ++g)
      slowest = std::max(slowest, chosen(g, limits[g])->time - frontier(g).back().time);
    return profile_.makespan + slowest * base_.micro_batches;
  }

  // The fastest point of each group inside of its limit; the most frugal one if none is.
  ChainPoint at(const std::vector<int64_t>& limits) const {
    ChainPoint point = {
        .saved = base_.saved, .prefetch = profile_.prefetch, .time = profile_.makespan};
    Nanoseconds slowest = 0;
    for (size_t g = 0; g < solvers_.size(); ++g) {
      const auto& list = frontier(g);
      const auto at = chosen(g, limits[g]);
      // Points below the floor are before those of the list.
      const auto index =
          static_cast<size_t>(at - list.begin()) + solvers_[g]->frontier().size() - list.size();
      point.bytes = std::max(point.bytes, at->bytes);
      slowest = std::max(slowest, at->time - list.back().time);
      apply_schedule(profile_.groups[g], solvers_[g]->schedule(index), point.saved);
    }
    point.time += slowest * base_.micro_batches;
    return point;
  }

 private:
  std::vector<ChainCost>::const_iterator chosen(size_t g, int64_t limit) const {
    const auto& list = frontier(g);
    const auto above = std::ranges::upper_bound(list, limit, {}, &ChainCost::bytes);
    return above == list.begin() ? above : std::prev(above);
  }

  Strategy base_;
  const ChainProfile profile_;
  std::vector<std::shared_ptr<const ChainSolver>> solvers_;
  std::vector<std::vector<ChainCost>> frontiers_;  // parallel: bytes ascending, above the floors
  BytesAtStart at_start_;
};

// The planner of a strategy: one that was made before, if there is a memo.
std::shared_ptr<const Planner> planner_of(const TrainingGraph& training, const Strategy& base,
                                          Evaluator& evaluator, const ChainSearchOptions& options,
                                          int64_t resolution);

// Along the frontier, by what is kept free below the limits: the more, the more frugal.
class Probing {
 public:
  Probing(const Planner& planner, Evaluator& evaluator, std::vector<int64_t> limits, int64_t probes)
      : planner_(planner), evaluator_(evaluator), limits_(std::move(limits)), left_(probes) {
    for (size_t g = 0; g < planner.groups(); ++g)
      for (const ChainCost& cost : planner.frontier(g)) free_.push_back(limits_[g] - cost.bytes);
    std::ranges::sort(free_);
    free_.erase(std::unique(free_.begin(), free_.end()), free_.end());
    prefetch_ = planner.prefetch();
  }

  std::optional<Candidate> run() {
    // Where the chain says that it just fits.
    const auto start = std::ranges::lower_bound(free_, 0) - free_.begin();
    size_t low = 0, high = free_.size() - 1;  // nothing fits below low; high fits, if anything does
    auto at = std::min(static_cast<size_t>(start), high);
    bool known_fit = false, known_too_much = false;
    for (size_t step = 1; left_ > 0; step *= 2) {
      if (fits(at)) {
        high = at;
        known_fit = true;
        if (at == low) break;
        at = known_too_much ? low + (high - low) / 2 : std::max(low + step, at) - step;
      } else {
        low = at + 1;
        known_too_much = true;
        if (low > high) break;
        at = known_fit ? low + (high - low) / 2 : std::min(high, at + step);
      }
    }
    // Copies that come back early take memory: the most frugal ones once more with late ones.
    left_ = kMore;
    if (!best_ && prefetch_ > kLatePrefetch) {
      prefetch_ = kLatePrefetch;
      tried_.clear();
      simulated_.clear();
      for (size_t k = 0; !best_ && k < free_.size() && left_ > 0; ++k) fits(free_.size() - 1 - k);
    }
    // What is more frugal may be faster, where tasks wait for memory at the limit.
    for (size_t k = 1; high + k < free_.size() && left_ > 0; k *= 3) fits(high + k);
    return best_;
  }

 private:
  static constexpr int64_t kMore = 5;  // simulations beside those of the bisection

  bool fits(size_t index) {
    if (const auto found = tried_.find(index); found != tried_.end()) return found->second;
    if (left_ <= 0) return false;
    std::vector<int64_t> limits = limits_;
    for (int64_t& limit : limits) limit -= free_[index];
    Strategy strategy = planner_.base();
    strategy.saved = planner_.at(limits).saved;
    const bool sends =
        std::ranges::find(strategy.saved, MemoryAction::Offload) != strategy.saved.end();
    if (sends) strategy.prefetch = prefetch_;
    auto [known, fresh] = simulated_.try_emplace(strategy.saved);
    if (fresh) {
      --left_;
      known->second = evaluator_.evaluate(strategy);
    }
    const Evaluation& found = known->second;
    if (found.fits && (!best_ || found.time < best_->time))
      best_ = {std::move(strategy), found.time};
    return tried_[index] = found.fits;
  }

  const Planner& planner_;
  Evaluator& evaluator_;
  const std::vector<int64_t> limits_;  // by chain
  int64_t left_;
  int32_t prefetch_ = 0;
  std::vector<int64_t> free_;  // ascending: at which something changes
  std::map<size_t, bool> tried_;
  std::map<std::vector<MemoryAction>, Evaluation> simulated_;
  std::optional<Candidate> best_;
};

// Fetching later takes less memory, earlier hides more.
void try_prefetch(Evaluator& evaluator, Candidate& best) {
  const auto& saved = best.strategy.saved;
  if (std::ranges::find(saved, MemoryAction::Offload) == saved.end()) return;
  if (best.strategy.prefetch == 0) return;  // copies hold up kernels: early ones gain nothing
  constexpr int kMostDoubled = 3;
  const auto better = [&](int32_t prefetch) {
    Strategy changed = best.strategy;
    changed.prefetch = prefetch;
    const Evaluation found = evaluator.evaluate(changed);
    if (!found.fits || found.time >= best.time) return false;
    best = {std::move(changed), found.time};
    return true;
  };
  const int32_t first = best.strategy.prefetch;
  for (int k = 0; k < kMostDoubled; ++k)
    if (!better(2 * best.strategy.prefetch)) break;
  if (best.strategy.prefetch == first) better(first / 2);
}

// Of each chain: of the smallest device of its group.
std::vector<int64_t> limits_of(const Machine& machine, const Planner& planner) {
  std::vector<int64_t> limits;
  for (size_t g = 0; g < planner.groups(); ++g) {
    int64_t least = INT64_MAX;
    for (DeviceId device : planner.base().groups[static_cast<size_t>(planner.group(g))])
      least = std::min(least, machine.devices[device.index()].limit.value);
    limits.push_back(least);
  }
  return limits;
}

// What is live beside all saved tensors does not fit: actions do not help.
bool hopeless(const Planner& planner, const std::vector<int64_t>& limits) {
  for (size_t g = 0; g < planner.groups(); ++g)
    if (static_cast<double>(planner.floor(g)) > kHopeless * static_cast<double>(limits[g]))
      return true;
  return false;
}

// Everything kept, but for what is gathered again.
Strategy all_kept(const Strategy& base) {
  Strategy kept = base;
  for (MemoryAction& action : kept.saved)
    if (action != MemoryAction::Regather) action = MemoryAction::Keep;
  return kept;
}

// Tensors that are read all along the network, and belong to no piece, on the host too.
Strategy with_rest_sent(const TrainingGraph& training, const Planner& planner) {
  Strategy strategy = planner.base();
  for (size_t s = 0; s < training.saved.size(); ++s)
    if (!planner.decides()[s] && training.saved[s].producer.valid())
      strategy.saved[s] = MemoryAction::Offload;
  return strategy;
}

}  // namespace

struct ChainMemo::Table {
  // Strategy, whether tensors may be sent, resolution.
  using Key = std::tuple<uint64_t, bool, int64_t>;
  std::map<Key, std::shared_ptr<const Planner>> planners;
  SolvedChains solved;
};

ChainMemo::ChainMemo() : table_(std::make_unique<Table>()) {}
ChainMemo::~ChainMemo() = default;

namespace {

std::shared_ptr<const Planner> planner_of(const TrainingGraph& training, const Strategy& base,
                                          Evaluator& evaluator, const ChainSearchOptions& options,
                                          int64_t resolution) {
  ChainMemo own;
  ChainMemo::Table& table = (options.memo != nullptr ? *options.memo : own).table();
  auto& known = table.planners[{strategy_hash(base), options.send, resolution}];
  if (!known)
    known = std::make_shared<const Planner>(training, base, evaluator, options, resolution,
                                            table.solved);
  return known;
}

}  // namespace

std::vector<ChainPoint> chain_frontier(const TrainingGraph& training, const Strategy& base,
                                       Evaluator& evaluator, const ChainSearchOptions& options) {
  SolvedChains solved;
  const Planner planner(training, base, evaluator, options, kResolution, solved);
  std::vector<int64_t> limits;
  for (size_t g = 0; g < planner.groups(); ++g)
    for (const ChainCost& cost : planner.frontier(g)) limits.push_back(cost.bytes);
  std::ranges::sort(limits, std::greater<>{});
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  std::vector<ChainPoint> points;
  for (int64_t limit : limits) {
    ChainPoint point = planner.at(std::vector<int64_t>(planner.groups(), limit));
    // Below what the neediest group can do, nothing changes for the better.
    if (point.bytes > limit) break;
    if (points.empty() || point.saved != points.back().saved) points.push_back(std::move(point));
  }
  return points;
}

std::optional<ChainPoint> most_frugal_on_chain(const TrainingGraph& training, const Strategy& base,
                                               Evaluator& evaluator,
                                               const ChainSearchOptions& options) {
  const auto planner = planner_of(training, all_kept(base), evaluator, options, kProbing);
  if (planner->empty()) return std::nullopt;
  // Below what the neediest group can do, nothing changes for the better.
  int64_t least = 0;
  for (size_t g = 0; g < planner->groups(); ++g)
    least = std::max(least, planner->frontier(g).front().bytes);
  return planner->at(std::vector<int64_t>(planner->groups(), least));
}

std::optional<Nanoseconds> estimate_on_chain(const Problem& problem, const TrainingGraph& training,
                                             const Strategy& base, Evaluator& evaluator,
                                             const ChainSearchOptions& options) {
  const auto known = planner_of(training, all_kept(base), evaluator, options, kCoarse);
  const Planner& planner = *known;
  if (!planner.fits_at_start(problem.machine) || planner.empty()) return std::nullopt;
  const std::vector<int64_t> limits = limits_of(problem.machine, planner);
  if (hopeless(planner, limits)) return std::nullopt;
  return planner.time_at(limits);
}

std::optional<Candidate> best_on_chain(const Problem& problem, const TrainingGraph& training,
                                       const Strategy& base, Evaluator& evaluator,
                                       const ChainSearchOptions& options) {
  // Nothing is faster than keeping everything.
  const Strategy kept = all_kept(base);
  if (const Evaluation found = evaluator.evaluate(kept); found.fits)
    return Candidate{kept, found.time};
  if (!evaluator.at_start().fit(problem.machine, kept)) return std::nullopt;
  const auto known = planner_of(training, kept, evaluator, options, kProbing);
  const Planner& planner = *known;
  if (planner.empty()) return std::nullopt;
  const std::vector<int64_t> limits = limits_of(problem.machine, planner);
  if (hopeless(planner, limits)) return std::nullopt;
  std::optional<Candidate> best = Probing(planner, evaluator, limits, options.probes).run();
  const auto take = [&](std::optional<Candidate> other) {
    if (other && (!best || other->time < best->time)) best = std::move(other);
  };
  const auto slower_than = [&](double ratio) {
    return !best ||
           static_cast<double>(best->time) > ratio * static_cast<double>(planner.makespan());
  };
  const auto stopped = [&] { return best && options.stop && options.stop(); };
  // Copies of gradients and weights may want the link too: a frontier without others beside.
  if (options.send && slower_than(kNotFree) && !stopped()) {
    ChainSearchOptions recompute = options;
    recompute.send = false;
    const auto other = planner_of(training, kept, evaluator, recompute, kProbing);
    take(Probing(*other, evaluator, limits, options.probes / 2).run());
  }
  // Where memory is short for the chain's taste, what it knows too little of matters: copies that
  // are late, stages that share a device.
  if (slower_than(kSlow)) {
    for (auto& saved : named_policies(training, kept, options.send)) {
      if (stopped()) break;
      Strategy strategy = kept;
      strategy.saved = std::move(saved);
      if (const Evaluation found = evaluator.evaluate(strategy); found.fits)
        take(Candidate{std::move(strategy), found.time});
    }
  }
  if (!best && options.send) {
    const Strategy frugal = with_rest_sent(training, planner);
    if (frugal.saved != kept.saved) {
      const auto other = planner_of(training, frugal, evaluator, options, kProbing);
      best = Probing(*other, evaluator, limits, options.probes).run();
    }
  }
  if (!best || options.polish <= 0 || stopped()) return best;
  try_prefetch(evaluator, *best);
  const int64_t last = evaluator.evaluations() + options.polish;
  spend_memory(training, evaluator, *best,
               [&] { return evaluator.evaluations() >= last || stopped(); });
  return best;
}

}  // namespace windlass
