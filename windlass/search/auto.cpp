// Where `auto` decides: which methods run, and in what order.
// All write into one book, so that the answer is the best of everything that was simulated.

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/grid/subsets.h"

namespace windlass {

SearchResult search_all(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  SearchResult facts;
  consider_starts(ledger);
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
    if (!options.fixed.any()) run_exact(ledger, all, facts);
  }
  if (!settled) run_walks(ledger, facts);
  if (!subsets.empty()) run_subsets(ledger, subsets, {.ceiling = ceiling, .improve = true}, facts);
  // Last: what begins at strategies in the book does not begin at packs.
  try_packs(ledger);
  SearchResult result = ledger.finish();
  // The bound of the exact search is for strategies without a pipeline: it says nothing of others.
  result.lower_bound = work_bound(problem);
  take_exact_facts(result, facts);
  result.objective = result.objective_bound = std::nullopt;
  result.proposals = facts.proposals;
  return result;
}

}  // namespace windlass
