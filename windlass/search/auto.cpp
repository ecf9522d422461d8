// Where `auto` decides: which methods run, and in what order.
// All write into one book, so that the answer is the best of everything that was simulated.

#include "windlass/search/book/ledger.h"
#include "windlass/search/grid/subsets.h"
#include "windlass/search/ladder.h"

namespace windlass {
namespace {

// Of the usual: each rung goes on from what those beside it found.
constexpr double kRungEffort = 0.25;

// All methods inside of the limits that the machine has now. `whole`: those also that look at
// everything anew, whatever is known.
void search_here(Ledger& ledger, bool whole, SearchResult& facts) {
  const Problem& problem = ledger.problem();
  const SearchOptions& options = ledger.options();
  bool settled = false;
  std::vector<DeviceSubset> subsets;
  Nanoseconds ceiling = ledger.ceiling();
  if (problem.machine.devices.size() == 1) {
    // If nothing fits, what needs least is known.
    settled = run_one_device(ledger) || !ledger.fits();
  } else {
    const std::vector<DeviceId> all = all_devices(problem.machine);
    run_grid(ledger, {all});
    // Small steps are fastest on one device.
    if (!options.fixed.structure())
      for (const char* name : {"single", "single:host-update=on"})
        if (const auto strategy =
                ledger.named(parse_baseline(name), ledger.micro_batches(1).front()))
          ledger.consider(*strategy, strategy->micro_batches);
    subsets = promising_subsets(ledger);
    ceiling = ledger.ceiling();
    if (whole && !options.fixed.any()) run_exact(ledger, all, facts);
  }
  if (!settled) run_walks(ledger, facts);
  if (!subsets.empty()) run_subsets(ledger, subsets, {.ceiling = ceiling, .improve = true}, facts);
  // Last: what begins at strategies in the book does not begin at packs.
  try_packs(ledger);
}

SearchResult with_facts(SearchResult result, const Problem& problem, const SearchResult& facts) {
  // The bound of the exact search is for strategies without a pipeline: it says nothing of others.
  result.lower_bound = work_bound(problem);
  take_exact_facts(result, facts);
  result.objective = result.objective_bound = std::nullopt;
  result.proposals = facts.proposals;
  return result;
}

}  // namespace

SearchResult search_all(const Problem& problem, const SearchOptions& options) {
  SearchResult facts;
  Ledger ledger(problem, options);
  consider_starts(ledger);
  search_here(ledger, true, facts);
  return with_facts(ledger.finish(), problem, facts);
}

SearchResult search_by_rungs(const Problem& problem, const SearchOptions& options) {
  if (!suits_ladder(problem)) return search_all(problem, options);
  SearchResult facts;
  const auto search = [&](Ledger& ledger, bool whole, double& effort) {
    effort = options.effort * (whole ? 1 : kRungEffort);
    search_here(ledger, whole, facts);
  };
  return with_facts(search_ladder(problem, options, search), problem, facts);
}

}  // namespace windlass
