// Data x tensor x pipeline splits with the remedies against full memory, all simulated.
//
// Every way to write the number of devices as a product of replicas, tensor-parallel parts and
// pipeline stages, with several numbers of micro-batches, is bounded from below. From the least
// bound on: if it does not fit, weights, gradients and optimizer state are shared out or kept on
// the host, and the chain search decides what becomes of saved tensors. All of that only adds time,
// so whatever is slower without limits than the best plan that fits is left out. If nothing fits,
// or the user has decided about recomputation, the usual policies are tried one by one.
//
// Pipelines are cut evenly, as people do, and as a dynamic program says: for the least time, and
// where that does not fit, for the least time within the limits. Replicas have equally many
// samples, and where their devices are not of one type also more on faster ones.

#include <algorithm>
#include <limits>
#include <set>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/book/spend_memory.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/grid/remedies.h"
#include "windlass/search/grid/structures.h"
#include "windlass/search/grid/subsets.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

class GridSearch {
 public:
  GridSearch(Ledger& ledger, const std::vector<std::vector<DeviceId>>& sets)
      : ledger_(ledger), fixed_(ledger.options().fixed), queue_(ledger, sets) {}

  void run() {
    first_answer();
    // Beside another answer it need not go on for long once it has one that gets no better.
    constexpr int kPatience = 12;
    int in_vain = 0;
    std::vector<Structure> structures;  // the fastest first, by what they take at least
    while (const std::optional<Structure> next = queue_.next()) {
      const Structure& structure = structures.emplace_back(*next);
      if (fixed_.recompute) continue;
      const Nanoseconds before = ledger_.ceiling();
      const int64_t chains = chains_;
      const size_t first = waiting_.size();
      std::set<int> resting;
      for (const BaselineSpec& spec : homes(structure.spec)) {
        if (ledger_.over()) break;
        // Weights that rest on hosts travel twice, which takes longer than updates on devices.
        if (spec.host_weights && resting.contains(spec.zero)) continue;
        if (by_chain(spec, structure) && !spec.host_update) resting.insert(spec.zero);
      }
      // The most promising one at once: what it finds spares most of the others.
      search_best_waiting(first);
      if (ledger_.ceiling() < before)
        in_vain = 0;
      else if (ledger_.fits() && chains_ > chains && ++in_vain == kPatience &&
               ledger_.beside_answer())
        break;
    }
    while (search_best_waiting(0)) {
    }
    if (fixed_.recompute ? ledger_.fits() : ledger_.answered()) return;
    for (const Structure& structure : structures) {
      if (ledger_.beaten(structure.time)) break;
      for (const BaselineSpec& spec : all_remedies(structure.spec, fixed_)) {
        if (ledger_.over()) break;
        consider(spec, structure);
      }
    }
    improve();
  }

 private:
  // Those that the user's decisions allow.
  std::vector<BaselineSpec> homes(const BaselineSpec& plain) const {
    BaselineSpec decided = plain;
    if (fixed_.offload) decided.offload = *fixed_.offload;
    std::vector<BaselineSpec> list = all_homes(decided);
    std::erase_if(list, [&](const BaselineSpec& spec) { return !fixed_.allows(spec); });
    return list;
  }

  // Everything kept.
  struct Considered {
    Strategy strategy;
    Evaluation plain = {};
    bool hopeless = false;  // not simulated: it does not fit whatever becomes of saved tensors
  };
  void look_at(Considered& entry, int64_t micro) {
    entry.hopeless = ledger_.fits() && ledger_.cut(micro).evaluator->never_fits(entry.strategy);
    if (!entry.hopeless) entry.plain = ledger_.consider(entry.strategy, micro);
  }

  // Saved tensors as the chain search says, if keeping them all does not fit. Whether it does, or
  // there is nothing to win.
  bool by_chain(const BaselineSpec& spec, const Structure& structure) {
    const std::optional<Strategy> named =
        ledger_.named(spec, structure.micro_batches, structure.devices);
    if (!named) return false;
    std::vector<Considered> list;
    for (const Borders& borders : structure.cuts) {
      Considered& entry = list.emplace_back(Considered{*named});
      dress(structure, borders, entry.strategy);
      look_at(entry, structure.micro_batches);
      if (entry.plain.fits) return true;
    }
    add_smaller(list, structure.micro_batches);
    const bool beaten = std::ranges::all_of(list, [&](const Considered& entry) {
      return !entry.hopeless && ledger_.beaten(entry.plain.free_time);
    });
    for (Considered& entry : list) {
      if (ledger_.over()) break;
      wait(std::move(entry), structure.micro_batches);
    }
    return beaten;
  }

  // A chain that may be worth solving: by what it says at a coarse resolution.
  struct Waiting {
    Considered considered;
    int64_t micro = 1;
    Nanoseconds estimate = 0;
    bool done = false;
  };
  // Estimates are off by some per cent.
  static constexpr double kEstimateError = 1.04;

  ChainSearchOptions chain_options(int64_t micro) {
    return {.send = !fixed_.offload || *fixed_.offload,
            .compress = ledger_.options().compress,
            .stop = [this] { return ledger_.over(); },
            .memo = &ledger_.kept<ChainMemos>()[micro]};
  }

  void wait(Considered considered, int64_t micro) {
    if (considered.hopeless || considered.plain.fits || ledger_.beaten(considered.plain.free_time))
      return;
    Cut& cut = ledger_.cut(micro);
    const std::optional<Nanoseconds> estimate = estimate_on_chain(
        ledger_.problem(), cut.training, considered.strategy, *cut.evaluator, chain_options(micro));
    // What does not fit by the chain's own account comes last, and only if there is no answer.
    waiting_.push_back({.considered = std::move(considered),
                        .micro = micro,
                        .estimate = estimate.value_or(std::numeric_limits<Nanoseconds>::max())});
  }

  // Solves the one with the least estimate of those from an index on; whether there was one that
  // may be better than what is known.
  bool search_best_waiting(size_t first) {
    Waiting* best = nullptr;
    for (size_t i = first; i < waiting_.size(); ++i)
      if (!waiting_[i].done && (best == nullptr || waiting_[i].estimate < best->estimate))
        best = &waiting_[i];
    if (best == nullptr) return false;
    const bool late = ledger_.over();
    if (late && ledger_.answered()) return false;
    if (ledger_.answered() && ledger_.beaten(static_cast<Nanoseconds>(
                                  static_cast<double>(best->estimate) / kEstimateError)))
      return false;
    best->done = true;
    spare_memory(best->considered, best->micro);
    return !late;
  }

  void dress(const Structure& structure, const Borders& borders, Strategy& strategy) {
    borders.apply_to(strategy);
    if (structure.samples.empty()) return;
    const Cut& cut = ledger_.cut(structure.micro_batches);
    size_replicas(cut.training, cut.batch, {structure.samples}, strategy);
    strategy.name += ":parts=" + format_parts(0, structure.samples);
  }

  // Borders that fit with everything kept, and those that promise most with as much kept as fits;
  // or else with little kept.
  void add_smaller(std::vector<Considered>& list, int64_t micro) {
    const size_t before = list.size();
    for (const StageMemory memory : {StageMemory::Keep, StageMemory::Some, StageMemory::Least}) {
      if (memory == StageMemory::Least && list.size() > before) return;
      const auto strategy = queue_.cutter(micro).recut(list.front().strategy, memory);
      if (!strategy) continue;
      const bool known = std::ranges::any_of(list, [&](const Considered& other) {
        return other.strategy.stages == strategy->stages &&
               other.strategy.groups == strategy->groups;
      });
      if (!known) look_at(list.emplace_back(Considered{*strategy}), micro);
    }
  }

  void spare_memory(const Considered& considered, int64_t micro) {
    const Evaluation& plain = considered.plain;
    if (plain.fits || ledger_.beaten(plain.free_time)) return;
    ++chains_;
    Strategy strategy = considered.strategy;
    Cut& cut = ledger_.cut(micro);
    const ChainSearchOptions options = chain_options(micro);
    const auto found =
        best_on_chain(ledger_.problem(), cut.training, strategy, *cut.evaluator, options);
    if (found) {
      ledger_.add(found->strategy, micro, found->time);
    } else if (!ledger_.answered()) {
      // What needs least is the answer to why not.
      const auto frugal = most_frugal_on_chain(cut.training, strategy, *cut.evaluator, options);
      if (!frugal) return;
      strategy.saved = frugal->saved;
      strategy.prefetch = 0;
      ledger_.consider(strategy, micro);
    }
    ledger_.report();
  }

  // What fits with activations recomputed or moved away may fit with some of them kept. Those first
  // that are fast as they are.
  void improve() {
    if (fixed_.recompute) return;
    constexpr size_t kMost = 4;
    std::ranges::stable_sort(fitting_, {}, &Ledger::Entry::time);
    for (size_t i = 0; i < std::min(kMost, fitting_.size()); ++i) {
      if (ledger_.over()) return;
      const Ledger::Entry& entry = fitting_[i];
      Cut& cut = ledger_.cut(entry.micro_batches);
      Candidate candidate = {entry.strategy, entry.time};
      spend_memory(cut.training, *cut.evaluator, candidate, [this] {
        ledger_.report();
        return ledger_.over();
      });
      ledger_.add(candidate.strategy, entry.micro_batches, candidate.time);
    }
  }

  // Something that fits, if it is easily found: whatever happens later, there is an answer.
  void first_answer() {
    if (fixed_.any() || ledger_.beside_answer()) return;
    const std::vector<int64_t> cuts = ledger_.micro_batches(StructureQueue::kMostMicroBatches);
    for (const int64_t micro : {cuts.front(), cuts[cuts.size() / 2]})
      for (const char* name :
           {"data-parallel", "recompute-all", "zero:stage=3,recompute=full,host-update=on"}) {
        if (ledger_.fits()) return;
        if (const auto strategy = ledger_.named(parse_baseline(name), micro))
          ledger_.consider(*strategy, micro);
      }
  }

  void consider(const BaselineSpec& spec, const Structure& structure) {
    const int64_t micro = structure.micro_batches;
    std::optional<Strategy> strategy = ledger_.named(spec, micro, structure.devices);
    if (!strategy) return;
    if (!structure.samples.empty()) dress(structure, structure.cuts[0], *strategy);
    const Evaluation inside = ledger_.consider(*strategy, micro);
    if (!inside.fits) return;
    const bool keeps = std::ranges::all_of(
        strategy->saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
    if (!keeps) fitting_.push_back({*strategy, micro, inside.time});
  }

  Ledger& ledger_;
  const FixedDecisions& fixed_;
  StructureQueue queue_;
  std::vector<Ledger::Entry> fitting_;
  std::vector<Waiting> waiting_;
  int64_t chains_ = 0;  // searched
};

}  // namespace

void run_grid(Ledger& ledger, const std::vector<std::vector<DeviceId>>& sets) {
  ledger.begin(ledger.beside_answer() ? "structures on fewer devices" : "structures",
               kStructureUnits);
  GridSearch(ledger, sets).run();
}

SearchResult search_grid(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  run_grid(ledger, {all_devices(problem.machine)});
  SearchResult facts;
  run_subsets(ledger, promising_subsets(ledger), {.ceiling = ledger.ceiling()}, facts);
  SearchResult result = ledger.finish();
  result.lower_bound = ledger.bound();
  return result;
}

}  // namespace windlass
