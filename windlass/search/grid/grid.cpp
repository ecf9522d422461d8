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
#include <map>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/book/spend_memory.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/grid/balance.h"
#include "windlass/search/grid/recut.h"
#include "windlass/search/grid/remedies.h"
#include "windlass/search/grid/subsets.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

constexpr int64_t kMostTensorParallel = 16, kMostStages = 32, kMostMicroBatches = 64;

// Who runs which part.
struct Borders {
  std::vector<Stage> stages;
  std::vector<std::vector<DeviceId>> groups;
  bool operator==(const Borders&) const = default;

  void apply_to(Strategy& strategy) const {
    strategy.stages = stages;
    strategy.groups = groups;
  }
};

struct Structure {
  std::vector<DeviceId> devices;
  BaselineSpec spec;
  int64_t micro_batches = 1;
  Nanoseconds time = 0;
  std::vector<Borders> cuts = {};     // at least one
  std::vector<int32_t> samples = {};  // of each replica; none: equally many
};

class GridSearch {
 public:
  GridSearch(Ledger& ledger, const std::vector<std::vector<DeviceId>>& sets)
      : ledger_(ledger), fixed_(ledger.options().fixed), sets_(sets) {}

  void run() {
    std::vector<Structure> structures = measured(all_structures());
    std::ranges::stable_sort(structures, {}, &Structure::time);
    // Beside another answer it need not go on for long once it has one that gets no better.
    constexpr int kPatience = 12;
    int in_vain = 0;
    if (!fixed_.recompute)
      for (const Structure& structure : structures) {
        if (ledger_.beaten(structure.time)) break;
        if (ledger_.over()) {
          const auto rest =
              structures.end() - structures.begin() - (&structure - structures.data());
          ledger_.leave_out(fmt::format("{} of {} structures", rest, structures.size()));
          break;
        }
        const Nanoseconds before = ledger_.ceiling();
        const int64_t chains = chains_;
        const size_t first = waiting_.size();
        for (const BaselineSpec& spec : homes(structure.spec)) {
          if (ledger_.over()) break;
          by_chain(spec, structure);
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
  };

  // Saved tensors as the chain search says, if keeping them all does not fit.
  void by_chain(const BaselineSpec& spec, const Structure& structure) {
    const std::optional<Strategy> named =
        ledger_.named(spec, structure.micro_batches, structure.devices);
    if (!named) return;
    std::vector<Considered> list;
    for (const Borders& borders : structure.cuts) {
      Considered& entry = list.emplace_back(Considered{*named});
      dress(structure, borders, entry.strategy);
      entry.plain = ledger_.consider(entry.strategy, structure.micro_batches);
      if (entry.plain.fits) return;
    }
    add_smaller(list, structure.micro_batches);
    for (Considered& entry : list) {
      if (ledger_.over()) return;
      wait(std::move(entry), structure.micro_batches);
    }
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

  ChainSearchOptions chain_options() {
    return {.send = !fixed_.offload || *fixed_.offload,
            .compress = ledger_.options().compress,
            .stop = [this] { return ledger_.over(); }};
  }

  void wait(Considered considered, int64_t micro) {
    if (considered.plain.fits || ledger_.beaten(considered.plain.free_time)) return;
    Cut& cut = ledger_.cut(micro);
    const std::optional<Nanoseconds> estimate = estimate_on_chain(
        ledger_.problem(), cut.training, considered.strategy, *cut.evaluator, chain_options());
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

  // Borders that fit with everything kept, or else with little kept.
  void add_smaller(std::vector<Considered>& list, int64_t micro) {
    for (const StageMemory memory : {StageMemory::Keep, StageMemory::Least}) {
      const auto strategy = cutter(micro).recut(list.front().strategy, memory);
      if (!strategy) continue;
      const bool known = std::ranges::any_of(list, [&](const Considered& other) {
        return other.strategy.stages == strategy->stages &&
               other.strategy.groups == strategy->groups;
      });
      if (!known) list.push_back({*strategy, ledger_.consider(*strategy, micro)});
      return;
    }
  }

  void spare_memory(const Considered& considered, int64_t micro) {
    const Evaluation& plain = considered.plain;
    if (plain.fits || ledger_.beaten(plain.free_time)) return;
    ++chains_;
    Strategy strategy = considered.strategy;
    Cut& cut = ledger_.cut(micro);
    const ChainSearchOptions options = chain_options();
    const auto found =
        best_on_chain(ledger_.problem(), cut.training, strategy, *cut.evaluator, options);
    if (found) {
      ledger_.add(found->strategy, micro, found->time);
    } else if (!ledger_.answered()) {
      // What needs least is the answer to why not.
      const auto frontier = chain_frontier(cut.training, strategy, *cut.evaluator, options);
      if (frontier.empty()) return;
      strategy.saved = frontier.back().saved;
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

  std::vector<Structure> all_structures() const {
    std::vector<Structure> list;
    for (const std::vector<DeviceId>& devices : sets_) add_structures(devices, list);
    return list;
  }

  void add_structures(const std::vector<DeviceId>& members, std::vector<Structure>& list) const {
    const auto devices = static_cast<int64_t>(members.size());
    const bool any_micro = ledger_.options().micro_batches == 0;
    const auto allowed = [](int64_t fixed, int64_t value) { return fixed == 0 || fixed == value; };
    for (int64_t tp = 1; tp <= std::min(devices, kMostTensorParallel); ++tp)
      for (int64_t pp = 1; pp <= std::min(devices, kMostStages); ++pp) {
        if (devices % (tp * pp) != 0) continue;
        const int64_t dp = devices / (tp * pp);
        if (!allowed(fixed_.tp, tp) || !allowed(fixed_.pp, pp) || !allowed(fixed_.dp, dp)) continue;
        for (int64_t m : ledger_.micro_batches(kMostMicroBatches)) {
          // A pipeline with fewer micro-batches than stages never fills.
          if (pp > 1 && m < pp && any_micro) continue;
          for (const bool sequence : {false, true}) {
            if (sequence && tp == 1) continue;
            Structure structure;
            structure.devices = members;
            structure.spec = parse_baseline("megatron");
            structure.spec.tp = tp;
            structure.spec.pp = pp;
            structure.spec.dp = dp;
            structure.spec.micro_batches = m;
            structure.spec.sequence_parallel = sequence;
            structure.micro_batches = m;
            list.push_back(structure);
          }
        }
      }
  }

  // Those that are possible, with what they take at least.
  std::vector<Structure> measured(std::vector<Structure> structures) {
    std::vector<Structure> result;
    for (Structure& structure : structures) {
      if (ledger_.over() && !result.empty()) break;
      const auto named = ledger_.named(structure.spec, structure.micro_batches, structure.devices);
      if (!named) continue;
      const Strategy strategy = sort_devices(ledger_.problem().machine, *named);
      structure.cuts = {{strategy.stages, strategy.groups}};
      Evaluator& evaluator = *ledger_.cut(structure.micro_batches).evaluator;
      structure.time = least_time(evaluator, strategy);
      if (auto better = cutter(structure.micro_batches).recut(strategy, StageMemory::Free)) {
        const Nanoseconds time = least_time(evaluator, *better);
        Borders borders = {better->stages, better->groups};
        if (time < structure.time && borders != structure.cuts[0])
          structure.cuts.insert(structure.cuts.begin(), std::move(borders));
        structure.time = std::min(structure.time, time);
      }
      result.push_back(structure);
      add_balanced(strategy, structure, result);
      ledger_.report();
    }
    return result;
  }

  // The same with more samples on faster devices.
  void add_balanced(const Strategy& strategy, Structure structure, std::vector<Structure>& result) {
    const Machine& machine = ledger_.problem().machine;
    if (structure.spec.dp == 1 || structure.spec.pp > 1 || !mixed(machine, strategy.groups[0]))
      return;
    Cut& cut = ledger_.cut(structure.micro_batches);
    for (const auto& samples :
         balanced_samples(ledger_.problem(), cut, strategy, structure.spec.dp)) {
      Strategy sized = strategy;
      size_replicas(cut.training, cut.batch, {samples}, sized);
      structure.samples = samples;
      structure.time = cut.evaluator->evaluate_unlimited(sized).time;
      result.push_back(structure);
    }
  }

  // The bound knows one kind of device in a group. Where many sets of devices compete, those that
  // mix kinds would all come first.
  Nanoseconds least_time(Evaluator& evaluator, const Strategy& strategy) const {
    const bool unlike = std::ranges::any_of(strategy.groups, [&](const auto& group) {
      return mixed(ledger_.problem().machine, group);
    });
    return ledger_.beside_answer() && unlike ? evaluator.evaluate_unlimited(strategy).time
                                             : evaluator.bound(strategy);
  }

  StageCutter& cutter(int64_t micro) {
    Cut& cut = ledger_.cut(micro);
    return cutters_.try_emplace(micro, ledger_.problem(), cut.training, *cut.evaluator)
        .first->second;
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
  const std::vector<std::vector<DeviceId>>& sets_;
  std::map<int64_t, StageCutter> cutters_;  // by micro-batches
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
  result.lower_bound = work_bound(problem);
  return result;
}

}  // namespace windlass
