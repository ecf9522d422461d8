// One device: frugal strategies first, then whatever memory is left is spent where it saves most.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/book/spend_memory.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/one_device/least_memory.h"

namespace windlass {
namespace {

// More micro-batches than this are tried only if fewer do not fit.
constexpr int64_t kFewMicroBatches = 4;
// Searches below a least limit, and what is looked at of each.
constexpr int kMostRounds = 8;
constexpr size_t kMostFound = 3;

class OneDevice {
 public:
  explicit OneDevice(Ledger& ledger) : ledger_(ledger), fixed_(ledger.options().fixed) {}

  // Whether everything fits as it is: there is nothing to decide.
  bool run() {
    const bool plain = search_cuts();
    if (!ledger_.fits()) seek_least();
    return plain;
  }

  // Without a look at what needs least.
  bool search_cuts() {
    const int64_t samples = std::max<int64_t>(1, ledger_.batch().samples);
    const int64_t only = ledger_.options().micro_batches;
    for (int64_t cuts = 1; cuts <= samples; ++cuts) {
      if (only > 0 ? cuts != only : samples % cuts != 0) continue;
      if (cuts > kFewMicroBatches && ledger_.fits()) break;
      if (ledger_.over() && (ledger_.fits() || asked_to_stop())) break;
      if (!ledger_.may_measure(cuts) || !ledger_.can_cut(cuts)) break;
      if (search_cut(cuts)) return true;
    }
    return false;
  }

  // Strategies from the fastest to the most frugal: where weights and optimizer live, times what
  // becomes of activations.
  std::vector<Strategy> bases(int64_t cuts) {
    struct Actions {
      RecomputePolicy recompute;
      bool offload;
    };
    constexpr Actions kActions[] = {{RecomputePolicy::None, false},
                                    {RecomputePolicy::Full, false},
                                    {RecomputePolicy::Sqrt, false},
                                    {RecomputePolicy::None, true},
                                    {RecomputePolicy::Full, true}};
    std::vector<Strategy> list;
    for (const WeightHome& home : kWeightHomes)
      for (const Actions& actions : kActions) {
        BaselineSpec spec = parse_baseline("single");
        spec.recompute = actions.recompute;
        spec.offload = actions.offload;
        home.apply_to(spec);
        if (!fixed_.allows(spec)) continue;
        std::optional<Strategy> strategy = ledger_.named(spec, cuts);
        if (!strategy) continue;
        strategy->name = "one device";
        // Where copies wait for kernels, early ones only take memory.
        if (ledger_.problem().machine.type_of(DeviceId(size_t{0})).copies_itself)
          strategy->prefetch = 0;
        list.push_back(std::move(*strategy));
      }
    return list;
  }

 private:
  // Whether nothing can be faster: everything is kept where it is used.
  bool search_cut(int64_t cuts) {
    Cut& here = ledger_.cut(cuts);
    const auto out = [&] {
      ledger_.report();
      return ledger_.over();
    };
    bool plain = true;
    const std::vector<Strategy> list = bases(cuts);
    for (const Strategy& base : list) {
      const bool late = out();
      if (late && (ledger_.fits() || asked_to_stop())) return false;
      // When time is over and nothing fits yet, only what needs least is still worth a try.
      if (late && !ledger_.frugal().empty() && &base != &list.back()) continue;
      const Evaluation found = ledger_.consider(base, cuts);
      if (found.fits && plain) return cuts == 1;
      const bool keeps = std::ranges::all_of(
          base.saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
      if (keeps && !fixed_.recompute && !late) by_chain(base, found, cuts);
      if (found.fits && !keeps && !fixed_.recompute) {
        Candidate candidate = {base, found.time};
        spend_memory(here.training, *here.evaluator, candidate, out);
        ledger_.add(candidate.strategy, cuts, candidate.time);
      }
      plain = false;
    }
    return false;
  }

  // The least limit there is; a plan, if it is not above this one.
  void seek_least() {
    const int64_t samples = std::max<int64_t>(1, ledger_.batch().samples);
    const int64_t only = ledger_.options().micro_batches;
    std::vector<Strategy> starts;
    for (int64_t cuts = 1; cuts <= samples; ++cuts) {
      if (only > 0 ? cuts != only : samples % cuts != 0) continue;
      if (!ledger_.can_cut(cuts)) break;
      for (Strategy& base : bases(cuts)) starts.push_back(std::move(base));
      if (ledger_.over()) break;
    }
    std::optional<LeastMemory> least = find_least_memory(ledger_, std::move(starts));
    // What the usual search finds below that, until it finds nothing.
    for (int round = 0; least && round < kMostRounds && !ledger_.over(); ++round) {
      const auto lower = find_least_memory(ledger_, found_below(least->limit));
      if (!lower || lower->limit >= least->limit) break;
      least = lower;
    }
    if (!least) return;
    ledger_.set_least(least->strategy, least->strategy.micro_batches, least->limit);
    ledger_.consider(least->strategy, least->strategy.micro_batches);
  }

  // Strategies that fit a lower limit. Times are those of the cost model, measured or not: they
  // must not matter.
  std::vector<Strategy> found_below(int64_t limit) const {
    const Problem& problem = ledger_.problem();
    Machine machine = problem.machine;
    machine.devices[0].limit = Bytes(limit - 1);
    Problem tighter = {.network = problem.network,
                       .machine = machine,
                       .training = problem.training,
                       .cost = problem.cost,
                       .measuring = problem.measuring};
    if (problem.reprice)
      tighter.reprice = [&problem](const TrainingGraph& training, const TaskGraph& tasks,
                                   TaskTimes& times) {
        const std::vector<Nanoseconds> durations = times.duration;
        problem.reprice(training, tasks, times);
        times.duration = durations;
      };
    SearchOptions options = ledger_.options();
    options.time_limit = Seconds(std::max(0.0, options.time_limit.value - ledger_.elapsed()));
    options.progress = {};
    Ledger below(tighter, options);
    OneDevice(below).search_cuts();
    std::vector<Strategy> found;
    for (const Ledger::Entry& entry : below.entries())
      if (found.size() < kMostFound) found.push_back(entry.strategy);
    return found;
  }

  // Time that is over is no reason to say that nothing fits; a user who waits no longer is, once
  // there is something to say.
  bool asked_to_stop() const {
    const SearchOptions& options = ledger_.options();
    return options.stop && options.stop() && !ledger_.frugal().empty();
  }

  // Saved tensors as the chain search says.
  void by_chain(const Strategy& base, const Evaluation& kept, int64_t cuts) {
    if (kept.fits || (ledger_.fits() && kept.free_time >= ledger_.best_time())) return;
    Cut& cut = ledger_.cut(cuts);
    const ChainSearchOptions options = {.send = !fixed_.offload || *fixed_.offload,
                                        .compress = ledger_.options().compress,
                                        .stop = [this] { return ledger_.over(); }};
    const auto found =
        best_on_chain(ledger_.problem(), cut.training, base, *cut.evaluator, options);
    if (found) ledger_.add(found->strategy, cuts, found->time);
  }

  Ledger& ledger_;
  const FixedDecisions& fixed_;
};

}  // namespace

bool run_one_device(Ledger& ledger) {
  ledger.begin("one device", kOneDeviceUnits);
  return OneDevice(ledger).run();
}

SearchResult search_one_device(const Problem& problem, const SearchOptions& options) {
  if (problem.machine.devices.size() != 1)
    fail_unsupported("{}: {} devices: this search is for one", problem.machine.name,
                     problem.machine.devices.size());
  Ledger ledger(problem, options);
  run_one_device(ledger);
  SearchResult result = ledger.finish();
  result.lower_bound = ledger.bound();
  return result;
}

}  // namespace windlass
