#include "windlass/search/ladder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "windlass/base/error.h"
#include "windlass/search/book/strategy_hash.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/grid/structures.h"

namespace windlass {
namespace {

constexpr int64_t kUnlimited = int64_t{1} << 50, kNothing = 1;
constexpr Nanoseconds kForever = std::numeric_limits<Nanoseconds>::max();
// Rungs and times that are nearer to each other are not told apart.
constexpr double kNearLimit = 1.02, kNearTime = 1.003;
// As long as nothing is known of less memory.
constexpr int64_t kDescent = 3;
// Of chain searches that go on from the plan of a rung.
constexpr int64_t kProbes = 6, kPolish = 6;

// A plan and the limit from which on it stands.
struct Rung {
  int64_t limit = 0;
  Ledger::Entry plan = {};
  int64_t needs = 0;            // of each device: its step is the same with any more
  Nanoseconds time = kForever;  // of the plan, whole
  std::optional<Nanoseconds> passed_over = {};
};

class Ladder {
 public:
  Ladder(const Problem& problem, const SearchOptions& options, const SearchRung& search)
      : search_(search),
        asked_(problem.machine.devices[0].limit.value),
        effort_(options.effort),
        below_(options.below),
        machine_(problem.machine),
        options_(without_below(options)),
        problem_{problem.network, machine_,        problem.training,
                 problem.cost,    problem.reprice, problem.measuring},
        book_(problem_, options_) {}

  SearchResult run() {
    const std::optional<Rung> found = climb();
    set_limit(asked_);
    options_.effort = effort_;
    options_.below = below_;
    SearchResult result = book_.interrupted() || !runs_ ? cut_short(found)
                          : found                       ? answer(*found)
                                                        : book_.finish();
    result.lower_bound = book_.bound();
    return result;
  }

 private:
  // Rungs are the same whatever else is known.
  static SearchOptions without_below(SearchOptions options) {
    options.below.reset();
    return options;
  }

  // Whether a plan that takes at least as long is known: so do those of all lower rungs.
  bool beaten(const Rung& rung) const {
    return below_ && rung.time < kForever && step_time(problem_, rung.time) >= *below_;
  }

  void set_limit(int64_t limit) {
    for (Device& device : machine_.devices) device.limit = Bytes(limit);
  }

  // The rung for the limit; none if nothing fits, or time is over.
  std::optional<Rung> climb() {
    Rung low, high;
    runs_ = top(high);
    if (!runs_ || book_.late() || high.limit <= asked_)
      return runs_ ? std::optional(high) : std::nullopt;
    while (!near(low, high) && !book_.late()) {
      if (beaten(high)) return std::nullopt;
      const int64_t limit = middle_of(low, high);
      const Rung middle = between(low, high, limit);
      if (middle.time == kForever) {
        bottom(low, high);
        if (low.limit > asked_) return std::nullopt;
      } else if (middle.limit > low.limit) {
        (middle.limit <= asked_ ? low : high) = middle;
      } else {  // it stands on the lower rung too
        low = middle;
        if (asked_ < limit) return low;
        low.limit = limit;
      }
    }
    return low;
  }

  static bool near(const Rung& low, const Rung& high) {
    if (low.limit == 0) return false;
    return static_cast<double>(high.limit) <= kNearLimit * static_cast<double>(low.limit) ||
           static_cast<double>(low.time) <= kNearTime * static_cast<double>(high.time);
  }

  Ledger search(int64_t limit, const std::vector<const Rung*>& beside) {
    set_limit(limit);
    Ledger ledger = book_.branch(kForever);
    consider_starts(ledger);
    std::set<uint64_t> structures;
    RungPlace place = {.before = searches_++, .least = limit == kNothing};
    size_t plans = 0;
    for (const Rung* rung : beside) {
      if (rung->time == kForever) continue;
      ++plans;
      place.fits = place.fits || rung->limit <= limit;
      if (rung->plan.strategy.packs)
        place.packs = true;
      else
        go_on_from(ledger, rung->plan, structures);
    }
    solve_waiting(ledger);
    place.alike = plans == 2 && structures.size() == 1 && !place.packs && ledger.fits();
    search_(ledger, place, options_.effort);
    // After the methods that begin at strategies in the book, which do not begin at packs.
    for (const Rung* rung : beside)
      if (rung->plan.strategy.packs) go_on_from(ledger, rung->plan, structures);
    book_.take_points(ledger);
    return ledger;
  }

  // A structure with everything kept, and what the chain says of it in the limits.
  struct GoOn {
    Strategy kept;
    int64_t micro_batches = 1;
    Nanoseconds estimate = 0;
  };
  // Estimates of pipelines that differ in their borders alone err alike.
  static constexpr double kNearEstimate = 1.005;
  static bool differ_in_borders(const GoOn& a, const GoOn& b) {
    return a.micro_batches == b.micro_batches && a.kept.stages.size() > 1 &&
           a.kept.stages.size() == b.kept.stages.size() &&
           a.kept.groups.size() == b.kept.groups.size();
  }

  static ChainSearchOptions chain_options(Ledger& ledger, int64_t micro_batches) {
    return {.compress = ledger.options().compress,
            .probes = kProbes,
            .polish = kPolish,
            .memo = &ledger.kept<ChainMemos>()[micro_batches]};
  }

  // A plan as it is, and what may come of its structure: with as much as fits kept, and with the
  // borders of a pipeline for these limits.
  void go_on_from(Ledger& ledger, const Ledger::Entry& plan, std::set<uint64_t>& structures) {
    Strategy strategy = plan.strategy;
    strategy.memory_cap = {};
    ledger.consider(strategy, plan.micro_batches);
    if (strategy.packs || ledger.options().fixed.any()) return;
    std::ranges::fill(strategy.saved, MemoryAction::Keep);
    strategy.prefetch = 0;
    if (!structures.insert(strategy_hash(strategy)).second) return;
    Cut& cut = ledger.cut(plan.micro_batches);
    StageCutter& cutter =
        ledger.kept<StructureMemo>().cutter(ledger.problem(), plan.micro_batches, cut);
    const std::optional<Strategy> moved = cutter.recut(strategy, StageMemory::Some);
    add(ledger, std::move(strategy), plan.micro_batches);
    if (moved) add(ledger, *moved, plan.micro_batches);
  }

  void add(Ledger& ledger, Strategy kept, int64_t micro_batches) {
    const uint64_t hash = strategy_hash(kept);
    const bool known = std::ranges::any_of(
        waiting_, [&](const GoOn& other) { return strategy_hash(other.kept) == hash; });
    if (known) return;
    Cut& cut = ledger.cut(micro_batches);
    const auto estimate = estimate_on_chain(ledger.problem(), cut.training, kept, *cut.evaluator,
                                            chain_options(ledger, micro_batches));
    waiting_.push_back({std::move(kept), micro_batches, estimate.value_or(kForever)});
  }

  // Of several borders of a pipeline, those that promise most.
  void solve_waiting(Ledger& ledger) {
    for (const GoOn& next : waiting_) {
      const bool worse = std::ranges::any_of(waiting_, [&](const GoOn& other) {
        return differ_in_borders(next, other) &&
               static_cast<double>(next.estimate) >
                   kNearEstimate * static_cast<double>(other.estimate);
      });
      if (worse) continue;
      Cut& cut = ledger.cut(next.micro_batches);
      const auto found = best_on_chain(ledger.problem(), cut.training, next.kept, *cut.evaluator,
                                       chain_options(ledger, next.micro_batches));
      if (found) ledger.add(found->strategy, next.micro_batches, found->time);
    }
    waiting_.clear();
  }

  bool top(Rung& high) {
    Ledger ledger = search(kUnlimited, {});
    return chosen(ledger, 0, kForever, high);
  }

  // What needs least becomes the lower rung; if that is faster than the upper one, or needs as
  // much, the upper one is what needs least.
  void bottom(Rung& low, const Rung& high) {
    Ledger ledger = search(kNothing, {});
    const Ledger::Entry least = ledger.least();
    low = high;
    if (least.time > 0 && least.time < high.limit) {
      set_limit(least.time);
      Ledger alone = book_.branch(kForever);
      alone.consider(least.strategy, least.micro_batches);
      chosen(alone, high.time, kForever, low);
    }
    book_.set_least(low.plan.strategy, low.plan.micro_batches, low.limit);
  }

  static int64_t middle_of(const Rung& low, const Rung& high) {
    if (low.limit == 0) return high.limit / kDescent;
    return static_cast<int64_t>(
        std::sqrt(static_cast<double>(low.limit) * static_cast<double>(high.limit)));
  }

  Rung between(const Rung& low, const Rung& high, int64_t limit) {
    Ledger ledger = search(limit, {&low, &high});
    Rung middle = low;
    if (!chosen(ledger, high.time, low.time, middle)) middle.limit = limit;
    return middle;
  }

  // What counts of a book, with what it needs.
  bool chosen(Ledger& ledger, Nanoseconds least, Nanoseconds most, Rung& rung) {
    std::optional<Nanoseconds> passed_over;
    const auto plan = ledger.choose(least, most, passed_over);
    if (!plan) return false;
    const Evaluation run = ledger.cut(plan->micro_batches).evaluator->evaluate(plan->strategy);
    ensure(run.fits && run.time == plan->time, "the step of a rung is another one");
    // Whatever did not wait for memory fits into the peak, and whatever waited does not.
    rung = {run.peak, *plan, run.peak, ledger.whole_time(*plan), passed_over};
    return true;
  }

  SearchResult answer(const Rung& rung) {
    Ledger::Entry plan = rung.plan;
    // A cap that changes nothing is none.
    Evaluator& evaluator = *book_.cut(plan.micro_batches).evaluator;
    const Evaluation free = evaluator.evaluate(plan.strategy);
    if (!free.fits || free.time != plan.time) plan.strategy.memory_cap = Bytes(rung.needs);
    book_.add(plan.strategy, plan.micro_batches, plan.time);
    SearchResult result = book_.finish();
    if (rung.passed_over) result.passed_over = step_time(problem_, *rung.passed_over);
    return result;
  }

  // Time is over: a search that is late from the start finds what there is to find at once. Or a
  // host is too small for anything, and what was tried says why.
  SearchResult cut_short(const std::optional<Rung>& rung) {
    Ledger ledger = search(asked_, {});
    book_.take(ledger);
    if (rung && rung->time < kForever && rung->limit <= asked_) return answer(*rung);
    return book_.finish();
  }

  const SearchRung& search_;
  const int64_t asked_;
  const double effort_;
  const std::optional<Seconds> below_;
  Machine machine_;        // its limits are those of the rung
  SearchOptions options_;  // its effort is that of the rung
  const Problem problem_;
  Ledger book_;
  std::vector<GoOn> waiting_;  // structures of the plans beside the rung that is searched
  int searches_ = 0;
  bool runs_ = false;  // without limits of devices, something does
};

}  // namespace

bool suits_ladder(const Problem& problem) {
  const auto& devices = problem.machine.devices;
  return !problem.reprice && std::ranges::all_of(devices, [&](const Device& device) {
    return device.limit == devices[0].limit;
  });
}

SearchResult search_ladder(const Problem& problem, const SearchOptions& options,
                           const SearchRung& search) {
  return Ladder(problem, options, search).run();
}

}  // namespace windlass
