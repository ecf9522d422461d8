// All devices as one group of replicas: numbers of micro-batches, homes of weights, gradients and
// optimizer state; for each the best on its chain.
//
// Each structure is simulated once with everything kept and without limits. From the fastest on,
// the chain is solved; actions only add time, so structures that are slower than the best plan are
// left out.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/search/chain/chain_search.h"
#include "windlass/search/chain/policies.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostMicroBatches = 64;
// Simulations to improve the best plan at the end.
constexpr int64_t kLastPolish = 200;
// Structures that are looked at for the least limit, those first that hold least.
constexpr size_t kMostFrugal = 4;

// A micro-batch's training graph and what evaluates strategies for it.
struct Cut {
  TrainingGraph training;
  BatchAxes batch;
  std::unique_ptr<Evaluator> evaluator;
};

struct Structure {
  Strategy strategy;
  int64_t micro_batches = 1;
  Nanoseconds time = 0;
  int64_t standing = 0;
};

class ChainMethod {
 public:
  ChainMethod(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        begin_(Clock::now()),
        batch_(find_batch(problem.network)) {}

  SearchResult run() {
    find_structures();
    std::ranges::stable_sort(structures_, {}, &Structure::time);
    for (const Structure& structure : structures_) {
      if (best_ && (structure.time >= best_->time || out_of_time())) break;
      // What is there when the step begins cannot be moved by actions.
      if (structure.standing > least_device()) continue;
      Cut& part = cut(structure.micro_batches);
      auto found = best_on_chain(problem_, part.training, structure.strategy, *part.evaluator);
      if (!found) continue;
      note(found->strategy, structure.micro_batches);
      if (best_ && found->time >= best_->time) continue;
      best_ = std::move(found);
      best_micro_ = structure.micro_batches;
    }
    if (best_) polish();
    return finish();
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool out_of_time() const { return elapsed() > options_.time_limit.value; }

  void polish() {
    Cut& part = cut(best_micro_);
    const bool keeps = std::ranges::all_of(
        best_->strategy.saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
    if (keeps) return;
    const int64_t last = part.evaluator->evaluations() + kLastPolish;
    spend_memory(part.training, *part.evaluator, *best_,
                 [&] { return part.evaluator->evaluations() >= last || out_of_time(); });
    note(best_->strategy, best_micro_);
  }

  int64_t least_device() const {
    int64_t least = INT64_MAX;
    for (const Device& device : problem_.machine.devices)
      least = std::min(least, device.limit.value);
    return least;
  }

  Cut& cut(int64_t micro_batches) {
    std::unique_ptr<Cut>& entry = cuts_[micro_batches];
    if (entry) return *entry;
    auto made = std::make_unique<Cut>();
    const Graph part = cut_batch(problem_.network, batch_, micro_batches);
    made->batch = find_batch(part);
    made->training = differentiate(part, problem_.training);
    made->evaluator = std::make_unique<Evaluator>(problem_, made->training);
    entry = std::move(made);
    return *entry;
  }

  std::vector<int64_t> micro_batches() const {
    if (options_.micro_batches > 0) return {options_.micro_batches};
    std::vector<int64_t> list = {1};
    if (!batch_.obstacle.empty()) return list;
    for (int64_t m = 2; m <= std::min(batch_.samples, kMostMicroBatches); ++m)
      if (batch_.samples % m == 0) list.push_back(m);
    return list;
  }

  void find_structures() {
    struct Home {
      bool host_update, host_weights;
      bool together;  // weights and gradients travel in batches, or each alone
    };
    constexpr Home kHomes[] = {{false, false, true},
                               {true, false, true},
                               {true, false, false},
                               {true, true, true},
                               {true, true, false}};
    const bool alone = problem_.machine.devices.size() == 1;
    for (int64_t micro : micro_batches())
      for (const Home& home : kHomes)
        for (int zero = 0; zero <= (alone ? 0 : 3); ++zero) {
          if (out_of_time() && !structures_.empty()) return;
          BaselineSpec spec = parse_baseline("data-parallel");
          spec.micro_batches = micro;
          spec.zero = zero;
          spec.host_update = home.host_update;
          spec.host_weights = home.host_weights;
          if (!home.together) spec.bucket = Bytes(1);
          add_structure(spec, micro);
        }
  }

  void add_structure(BaselineSpec spec, int64_t micro) {
    Structure structure;
    structure.micro_batches = micro;
    try {
      resolve(spec, problem_.machine, batch_.samples);
      Cut& part = cut(micro);
      structure.strategy = make_baseline(spec, part.training, part.batch, problem_.machine);
      check_strategy(part.training, problem_.machine, structure.strategy);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      return;  // not one for this model or machine
    }
    Evaluator& evaluator = *cut(micro).evaluator;
    structure.time = note(structure.strategy, micro);
    structure.standing = evaluator.standing(structure.strategy);
    structures_.push_back(std::move(structure));
  }

  // Simulates without limits and notes the point of the frontier.
  Nanoseconds note(const Strategy& strategy, int64_t micro) {
    const Evaluation free = cut(micro).evaluator->evaluate_unlimited(strategy);
    points_.emplace_back(free.peak, free.time);
    return free.time;
  }

  SearchResult finish() {
    SearchResult result;
    result.samples = batch_.samples;
    int64_t micro = best_micro_;
    if (best_) {
      result.termination = out_of_time() ? Termination::Limit : Termination::Feasible;
      result.strategy = best_->strategy;
      result.strategy.name = "chain";
      result.step_time = step_time(problem_, best_->time);
    } else {
      micro = find_least(result);
    }
    result.lower_bound = work_bound(problem_);
    result.frontier =
        frontier_of(points_, [&](Nanoseconds time) { return step_time(problem_, time); });
    for (const auto& [count, part] : cuts_) result.tried += part->evaluator->evaluations();
    result.training = std::move(cut(micro).training);
    result.seconds = Seconds(elapsed());
    return result;
  }

  // The least limit of what was tried, and the strategy for it.
  int64_t find_least(SearchResult& result) {
    int64_t micro = options_.micro_batches > 0 && cuts_.contains(options_.micro_batches)
                        ? options_.micro_batches
                        : 1;
    result.strategy = plain_strategy(cut(micro).training, DeviceId(size_t{0}));
    std::ranges::stable_sort(structures_, {}, &Structure::standing);
    for (size_t k = 0; k < std::min(kMostFrugal, structures_.size()); ++k) {
      const Structure& structure = structures_[k];
      Cut& part = cut(structure.micro_batches);
      std::vector<std::vector<MemoryAction>> tries =
          named_policies(part.training, structure.strategy, true);
      auto points = chain_frontier(part.training, structure.strategy, *part.evaluator);
      if (!points.empty()) tries.push_back(std::move(points.back().saved));
      for (std::vector<MemoryAction>& saved : tries) {
        Strategy strategy = structure.strategy;
        strategy.saved = std::move(saved);
        const std::optional<int64_t> least = part.evaluator->least_limit(strategy);
        if (!least || (result.least_limit && *least >= result.least_limit->value)) continue;
        result.least_limit = Bytes(*least);
        result.strategy = std::move(strategy);
        micro = structure.micro_batches;
      }
    }
    return micro;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const Clock::time_point begin_;
  BatchAxes batch_;
  std::map<int64_t, std::unique_ptr<Cut>> cuts_;
  std::vector<Structure> structures_;
  std::vector<std::pair<int64_t, Nanoseconds>> points_;  // peak and time without limits
  std::optional<Candidate> best_;
  int64_t best_micro_ = 1;
};

}  // namespace

SearchResult search_chain(const Problem& problem, const SearchOptions& options) {
  return ChainMethod(problem, options).run();
}

}  // namespace windlass
