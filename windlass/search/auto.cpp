// Where `auto` decides: which methods run, in what order, and at which limits (ladder.h).
// All write into one book, so that the answer is the best of everything that was simulated.

#include <iterator>
#include <utility>

#include "windlass/search/book/ledger.h"
#include "windlass/search/grid/subsets.h"
#include "windlass/search/ladder.h"

namespace windlass {
namespace {

// Of the usual effort, by the searches that were made before: the first one is without limits, the
// next ones find what helps where memory is short, and what is found later lies between two plans.
// And of the search for what needs least.
constexpr double kRungEfforts[] = {1, 0.4, 0.2};
constexpr double kLaterEffort = 0.12, kLeastEffort = 0.5;
// Searches after this one go on from the structures of the plans beside them alone.
constexpr size_t kLastStructures = 4;

// Which methods run.
struct Breadth {
  bool whole = true;       // those also that look at everything anew, whatever is known
  bool structures = true;  // other structures than those that are in the book already
  bool packs = true;  // packs of layers, which are looked at in any case where nothing else fits
};

// Inside of the limits that the machine has now.
void search_here(Ledger& ledger, const Breadth& breadth, SearchResult& facts) {
  const Problem& problem = ledger.problem();
  const SearchOptions& options = ledger.options();
  bool settled = false;
  std::vector<DeviceSubset> subsets;
  Nanoseconds ceiling = ledger.ceiling();
  if (problem.machine.devices.size() == 1) {
    // If nothing fits, what needs least is known.
    settled = run_one_device(ledger) || !ledger.fits();
  } else if (breadth.structures) {
    const std::vector<DeviceId> all = all_devices(problem.machine);
    run_grid(ledger, {all});
    // Small steps are fastest on one device.
    if (!options.fixed.structure())
      for (const char* name : {"single", "single:host-update=on"})
        if (const auto strategy =
                ledger.named(parse_baseline(name), ledger.micro_batches(1).front()))
          ledger.consider(*strategy, strategy->micro_batches);
    if (breadth.whole || !ledger.fits()) subsets = promising_subsets(ledger);
    ceiling = ledger.ceiling();
    if (breadth.whole && !options.fixed.any()) run_exact(ledger, all, facts);
  }
  if (!settled) run_walks(ledger, facts, breadth.whole);
  if (!subsets.empty()) run_subsets(ledger, subsets, {.ceiling = ceiling, .improve = true}, facts);
  // Last: what begins at strategies in the book does not begin at packs.
  if (breadth.packs || !ledger.fits()) try_packs(ledger);
}

SearchResult with_facts(SearchResult result, const SearchResult& facts) {
  // The bound of the exact search is for strategies without a pipeline: it says nothing of others.
  take_exact_facts(result, facts);
  result.objective = result.objective_bound = std::nullopt;
  result.proposals = facts.proposals;
  return result;
}

}  // namespace

SearchResult search_all(const Problem& problem, const SearchOptions& options) {
  SearchResult facts;
  if (!suits_ladder(problem)) {
    Ledger ledger(problem, options);
    consider_starts(ledger);
    search_here(ledger, {}, facts);
    SearchResult result = ledger.finish();
    result.lower_bound = ledger.bound();
    return with_facts(std::move(result), facts);
  }
  const auto search = [&](Ledger& ledger, const RungPlace& place, double& effort) {
    const auto at = static_cast<size_t>(place.before);
    const bool first = at == 0, early = at < std::size(kRungEfforts);
    const bool fits = ledger.fits() || place.fits;
    const double share = early ? kRungEfforts[at] : kLaterEffort;
    effort = options.effort * (place.least ? kLeastEffort : share);
    search_here(
        ledger,
        {.whole = first,
         .structures = early || !fits || place.least || (at < kLastStructures && !place.alike),
         .packs = (early && !first) || place.packs},
        facts);
  };
  return with_facts(search_ladder(problem, options, search), facts);
}

}  // namespace windlass
