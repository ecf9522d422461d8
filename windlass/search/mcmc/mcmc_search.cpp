// Markov chains from the best strategies that are known.

#include <algorithm>

#include "windlass/search/book/ledger.h"
#include "windlass/search/book/tidy.h"
#include "windlass/search/mcmc/walks.h"

namespace windlass {
namespace {

// Tasks that the simulations of all chains together may have, and proposals of each chain.
constexpr double kTasks = 2e6;
constexpr double kProposals = 12000;
// Tasks of the steps that a chain proposes: most proposals are bounded, not simulated, which takes
// the longer the more there are.
constexpr double kProposed = 2.5e6;
// Devices up to which a proposal takes no longer for their number: of more, what moves between each
// two of them has to be priced.
constexpr double kUncrowded = 16;
constexpr int kChains = 4;
constexpr int64_t kFewest = 16, kWorthwhile = 48;  // simulations of a chain

bool same_structure(const Strategy& a, const Strategy& b) {
  return a.groups == b.groups && a.stages == b.stages && a.schedule == b.schedule;
}

// The fastest of each structure.
std::vector<Strategy> starts_of(const std::vector<Ledger::Entry>& entries, int64_t micro_batches) {
  std::vector<Strategy> starts;
  for (const Ledger::Entry& entry : entries) {
    if (starts.size() == kChains || entry.micro_batches != micro_batches) continue;
    const bool known = std::ranges::any_of(
        starts, [&](const Strategy& start) { return same_structure(start, entry.strategy); });
    if (!known) starts.push_back(entry.strategy);
  }
  return starts;
}

// Shardings that no op has are left out.
void compact(Strategy& strategy) {
  std::vector<int32_t> place(strategy.shardings.size(), -1);
  std::vector<Sharding> kept;
  for (int32_t& op : strategy.ops) {
    int32_t& at = place[static_cast<size_t>(op)];
    if (at < 0) {
      at = static_cast<int32_t>(kept.size());
      kept.push_back(strategy.shardings[static_cast<size_t>(op)]);
    }
    op = at;
  }
  strategy.shardings = std::move(kept);
}

class Walks {
 public:
  Walks(Ledger& ledger, SearchResult& facts, bool anyway)
      : ledger_(ledger), facts_(facts), anyway_(anyway) {}

  void run() {
    const std::vector<Ledger::Entry> entries =
        ledger_.fits() ? ledger_.entries() : ledger_.frugal();
    if (entries.empty() || (ledger_.options().below && !ledger_.fits())) return;
    // The cut of the best one; others have to be nearly as good. Peaks say less about limits than
    // times about times.
    const double near_best = ledger_.fits() ? 1.05 : 1.5;
    const size_t most_cuts = ledger_.fits() ? 2 : 8;
    std::vector<int64_t> cuts;
    for (const Ledger::Entry& entry : entries) {
      const bool near =
          static_cast<double>(entry.time) <= near_best * static_cast<double>(entries.front().time);
      if (near && cuts.size() < most_cuts &&
          std::ranges::find(cuts, entry.micro_batches) == cuts.end())
        cuts.push_back(entry.micro_batches);
    }
    for (size_t i = 0; i < cuts.size(); ++i)
      if (!ledger_.interrupted()) from(entries, cuts[i], i == 0 ? 1 : 0.3);
  }

 private:
  bool fixed() const { return ledger_.options().fixed.any(); }

  MoveMix mix() const {
    const FixedDecisions& fixed = ledger_.options().fixed;
    MoveMix mix;
    mix.compress = fixed.recompute ? 0 : ledger_.options().compress;
    mix.recompute = !fixed.recompute;
    mix.offload = !fixed.offload || *fixed.offload;
    mix.zero = fixed.zero < 0;
    mix.host_weights = !fixed.host_weights;
    mix.host_update = !fixed.host_update;
    if (fixed.recompute) mix.one_tensor = mix.tensors_alike = mix.exchange = 0;
    if (fixed.structure()) mix.one_op = mix.ops_alike = mix.propagation = mix.border = 0;
    if (!ledger_.memory_binds()) {
      mix.one_tensor = mix.tensors_alike = mix.exchange = 0;
      // Most of these change nothing then, and have to be simulated to see it.
      mix.weights = 0.5;
      mix.pace = 0.25;
    }
    return mix;
  }

  void from(const std::vector<Ledger::Entry>& entries, int64_t micro, double share) {
    Cut& cut = ledger_.cut(micro);
    const std::vector<Strategy> starts = starts_of(entries, micro);
    cut.evaluator->evaluate_unlimited(starts.front());
    // Measured prices are looked up by name, and cannot be bounded.
    const double slow = ledger_.problem().reprice ? 0.05 : 1;
    const double effort = share * slow * ledger_.options().effort;
    WalkOptions options;
    options.mix = mix();
    options.chains = kChains;
    const auto tasks = static_cast<double>(cut.evaluator->tasks());
    const auto devices = static_cast<double>(ledger_.problem().machine.devices.size());
    const double crowd = std::max(1.0, devices / kUncrowded);
    options.proposals =
        static_cast<int64_t>(std::min(kProposals, kProposed / tasks) * effort / crowd);
    options.simulations = static_cast<int64_t>(kTasks * effort / kChains / tasks);
    if (options.simulations < kWorthwhile && !anyway_) return;
    options.simulations = std::max(options.simulations, kFewest);
    options.threads = ledger_.options().threads;
    options.seed = ledger_.options().seed;
    options.stop = [&] { return ledger_.late(); };
    const double begin = ledger_.elapsed();
    options.progress = [&](int64_t proposals, int64_t simulated, double energy) {
      SearchProgress progress;
      progress.tried = simulated;
      if (energy < StepJudge::kMisfit)
        progress.best = step_time(ledger_.problem(), static_cast<Nanoseconds>(energy));
      progress.proposals_per_second =
          static_cast<double>(proposals) / std::max(1e-9, ledger_.elapsed() - begin);
      ledger_.report(progress);
    };
    const auto judge = [&] { return std::make_unique<StepJudge>(ledger_.problem(), cut.training); };
    WalkResult found = walk(cut.training, ledger_.problem().machine, starts, judge, options);
    facts_.proposals += found.proposals;
    if (found.stopped) ledger_.cut_short(true);
    ledger_.count(found.simulated);
    compact(found.best);
    if (found.valid) {
      constexpr int64_t kTidying = 60;
      Candidate best = {std::move(found.best), static_cast<Nanoseconds>(found.energy)};
      if (!fixed()) tidy(*cut.evaluator, best, kTidying);
      found.best = std::move(best.strategy);
    }
    found.best.name = "windlass";
    if (found.valid)
      ledger_.consider(found.best, micro);
    else
      ledger_.add_frugal(found.best, micro);
  }

  Ledger& ledger_;
  SearchResult& facts_;
  const bool anyway_;
};

}  // namespace

void run_walks(Ledger& ledger, SearchResult& facts, bool anyway) {
  ledger.begin("Markov chains", 0);  // have their own count
  Walks(ledger, facts, anyway).run();
}

SearchResult search_mcmc(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  consider_starts(ledger);
  const bool one = problem.machine.devices.size() == 1;
  const std::vector<const char*> names =
      one ? std::vector<const char*>{"single", "single:recompute=full",
                                     "single:recompute=full,host-weights=on,host-update=on"}
          : std::vector<const char*>{"data-parallel", "recompute-all",
                                     "zero:stage=3,recompute=full,host-update=on"};
  if (options.starts.empty())
    for (const char* name : names)
      for (const int64_t micro : ledger.micro_batches(8))
        if (ledger.may_measure(micro))
          if (const auto strategy = ledger.named(parse_baseline(name), micro))
            ledger.consider(*strategy, micro);
  SearchResult facts;
  run_walks(ledger, facts);
  SearchResult result = ledger.finish();
  result.lower_bound = ledger.bound();
  result.proposals = facts.proposals;
  return result;
}

}  // namespace windlass
