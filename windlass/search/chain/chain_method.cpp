// All devices as one group of replicas: numbers of micro-batches, homes of weights, gradients and
// optimizer state; for each the best on its chain.
//
// Each structure is simulated once with everything kept and without limits. From the fastest on,
// the chain is solved; actions only add time, so structures that are slower than the best plan are
// left out.

#include <algorithm>

#include "windlass/search/book/ledger.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/chain/policies.h"

namespace windlass {
namespace {

constexpr int64_t kMostMicroBatches = 64;
// Simulations to improve the best plan at the end.
constexpr int64_t kLastPolish = 200;
// Structures that are looked at for the least limit, those first that hold least.
constexpr size_t kMostFrugal = 4;

struct Structure {
  Strategy strategy;
  int64_t micro_batches = 1;
  Nanoseconds time = 0;
  int64_t standing = 0;
};

class ChainMethod {
 public:
  explicit ChainMethod(Ledger& ledger) : ledger_(ledger), fixed_(ledger.options().fixed) {
    chain_.compress = ledger.options().compress;
    chain_.send = fixed_.offload.value_or(true);
    chain_.stop = [&ledger] { return ledger.over(); };
    for (const Device& device : ledger.problem().machine.devices)
      least_device_ = std::min(least_device_, device.limit.value);
  }

  void run() {
    const auto devices = static_cast<int64_t>(ledger_.problem().machine.devices.size());
    // A named way to recompute is none that the chain could choose.
    if (fixed_.recompute || fixed_.tp > 1 || fixed_.pp > 1 || fixed_.cp > 1 || fixed_.ep > 1 ||
        (fixed_.dp > 0 && fixed_.dp != devices))
      return;
    find_structures(devices);
    std::ranges::stable_sort(structures_, {}, &Structure::time);
    for (const Structure& structure : structures_) {
      if (best_ && (structure.time >= best_->time || ledger_.over())) break;
      // What is there when the step begins cannot be moved by actions.
      if (structure.standing > least_device_) continue;
      Cut& part = ledger_.cut(structure.micro_batches);
      auto found = best_on_chain(ledger_.problem(), part.training, structure.strategy,
                                 *part.evaluator, chain_);
      ledger_.report();
      if (!found) continue;
      note(*found, structure.micro_batches);
      if (best_ && found->time >= best_->time) continue;
      best_ = std::move(found);
      best_micro_ = structure.micro_batches;
    }
    if (best_)
      polish();
    else
      find_least();
  }

 private:
  void find_structures(int64_t devices) {
    for (int64_t micro : ledger_.micro_batches(kMostMicroBatches)) {
      if (!ledger_.may_measure(micro)) return;
      for (const WeightHome& home : kWeightHomes)
        for (int zero = 0; zero <= (devices == 1 ? 0 : 3); ++zero) {
          if (ledger_.over() && !structures_.empty()) return;
          BaselineSpec spec = parse_baseline("data-parallel");
          spec.micro_batches = micro;
          spec.zero = zero;
          spec.dp = devices;
          spec.offload = fixed_.offload.value_or(false);
          home.apply_to(spec);
          if (fixed_.allows(spec)) add_structure(spec, micro);
        }
    }
  }

  void add_structure(const BaselineSpec& spec, int64_t micro) {
    std::optional<Strategy> strategy = ledger_.named(spec, micro);
    if (!strategy) return;
    strategy->name = "chain";
    Evaluator& evaluator = *ledger_.cut(micro).evaluator;
    Structure structure;
    structure.micro_batches = micro;
    structure.time = ledger_.consider(*strategy, micro).free_time;
    structure.standing = evaluator.standing(*strategy);
    structure.strategy = std::move(*strategy);
    structures_.push_back(std::move(structure));
  }

  void note(const Candidate& found, int64_t micro) {
    ledger_.consider(found.strategy, micro);
    ledger_.add(found.strategy, micro, found.time);
  }

  void polish() {
    Cut& part = ledger_.cut(best_micro_);
    const bool keeps = std::ranges::all_of(
        best_->strategy.saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
    if (keeps) return;
    const int64_t last = part.evaluator->evaluations() + kLastPolish;
    spend_memory(part.training, *part.evaluator, *best_,
                 [&] { return part.evaluator->evaluations() >= last || ledger_.over(); });
    note(*best_, best_micro_);
  }

  // What needs least, for the answer that nothing fits.
  void find_least() {
    std::ranges::stable_sort(structures_, {}, &Structure::standing);
    for (size_t k = 0; k < std::min(kMostFrugal, structures_.size()); ++k) {
      const Structure& structure = structures_[k];
      Cut& part = ledger_.cut(structure.micro_batches);
      std::vector<std::vector<MemoryAction>> tries =
          named_policies(part.training, structure.strategy, chain_.send);
      auto points = chain_frontier(part.training, structure.strategy, *part.evaluator, chain_);
      if (!points.empty()) tries.push_back(std::move(points.back().saved));
      for (std::vector<MemoryAction>& saved : tries) {
        Strategy strategy = structure.strategy;
        strategy.saved = std::move(saved);
        ledger_.consider(strategy, structure.micro_batches);
      }
    }
  }

  Ledger& ledger_;
  const FixedDecisions& fixed_;
  ChainSearchOptions chain_;
  int64_t least_device_ = INT64_MAX;
  std::vector<Structure> structures_;
  std::optional<Candidate> best_;
  int64_t best_micro_ = 1;
};

}  // namespace

void run_chain(Ledger& ledger) {
  ledger.begin("chains", kChainUnits);
  ChainMethod(ledger).run();
}

SearchResult search_chain(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  run_chain(ledger);
  SearchResult result = ledger.finish();
  result.lower_bound = ledger.bound();
  return result;
}

}  // namespace windlass
