// Data x tensor x pipeline splits with the usual remedies against full memory, all simulated.
//
// Every way to write the number of devices as a product of replicas, tensor-parallel parts and
// pipeline stages, with several numbers of micro-batches, is simulated without limits. From the
// fastest on: if it does not fit, the remedies are tried (optimizer state, gradients and weights
// shared out or on the host; activations recomputed or moved to the host). Remedies only add time,
// so structures slower than the best plan that fits are left out.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/search/evaluate.h"
#include "windlass/search/spend_memory.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostTensorParallel = 16, kMostStages = 32, kMostMicroBatches = 64;

// A micro-batch's training graph and what evaluates strategies for it.
struct Cut {
  TrainingGraph training;
  BatchAxes batch;
  std::unique_ptr<Evaluator> evaluator;
};

struct Structure {
  BaselineSpec spec;
  int64_t micro_batches = 1;
  Nanoseconds time = 0;
};

class GridSearch {
 public:
  GridSearch(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        begin_(Clock::now()),
        batch_(find_batch(problem.network)) {}

  SearchResult run() {
    std::vector<Structure> structures = measured(all_structures());
    std::ranges::stable_sort(structures, {}, &Structure::time);
    for (const Structure& structure : structures) {
      if (out_of_time()) break;
      if (best_ && structure.time >= best_time_) break;
      for (const BaselineSpec& spec : remedies(structure.spec)) {
        if (out_of_time()) break;
        consider(spec, structure.micro_batches);
      }
    }
    improve();
    return finish();
  }

 private:
  // What fits with activations recomputed or moved away may fit with some of them kept. Those first
  // that are fast as they are.
  void improve() {
    constexpr size_t kMost = 4;
    std::ranges::stable_sort(fitting_, {}, [](const auto& f) { return f.first.time; });
    for (size_t i = 0; i < std::min(kMost, fitting_.size()) && !out_of_time(); ++i) {
      auto& [candidate, micro] = fitting_[i];
      Cut& part = cut(micro);
      spend_memory(part.training, *part.evaluator, candidate, [this] { return out_of_time(); });
      note(candidate.strategy, micro);
      if (candidate.time >= best_time_) continue;
      best_ = candidate.strategy;
      best_time_ = candidate.time;
      best_micro_ = micro;
    }
  }

  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool out_of_time() const { return elapsed() > options_.time_limit.value; }
  int64_t tried() const {
    int64_t sum = 0;
    for (const auto& [micro, cut] : cuts_) sum += cut->evaluator->evaluations();
    return sum;
  }

  Cut& cut(int64_t micro_batches) {
    std::unique_ptr<Cut>& entry = cuts_[micro_batches];
    if (entry) return *entry;
    entry = std::make_unique<Cut>();
    const Graph part = cut_batch(problem_.network, batch_, micro_batches);
    entry->batch = find_batch(part);
    entry->training = differentiate(part, problem_.training);
    entry->evaluator = std::make_unique<Evaluator>(problem_, entry->training);
    return *entry;
  }

  std::vector<int64_t> micro_batches() const {
    if (options_.micro_batches > 0) return {options_.micro_batches};
    std::vector<int64_t> list = {1};
    if (!batch_.obstacle.empty()) return list;
    for (int64_t m = 2; m <= std::min(batch_.samples, kMostMicroBatches); m *= 2)
      if (batch_.samples % m == 0) list.push_back(m);
    return list;
  }

  std::vector<Structure> all_structures() const {
    std::vector<Structure> list;
    const auto devices = static_cast<int64_t>(problem_.machine.devices.size());
    for (int64_t tp = 1; tp <= std::min(devices, kMostTensorParallel); ++tp)
      for (int64_t pp = 1; pp <= std::min(devices, kMostStages); ++pp) {
        if (devices % (tp * pp) != 0) continue;
        for (int64_t m : micro_batches()) {
          // A pipeline with fewer micro-batches than stages never fills.
          if (pp > 1 && m < pp && options_.micro_batches == 0) continue;
          for (const bool sequence : {false, true}) {
            if (sequence && tp == 1) continue;
            Structure structure;
            structure.spec = parse_baseline("megatron");
            structure.spec.tp = tp;
            structure.spec.pp = pp;
            structure.spec.dp = devices / (tp * pp);
            structure.spec.micro_batches = m;
            structure.spec.sequence_parallel = sequence;
            structure.micro_batches = m;
            list.push_back(structure);
          }
        }
      }
    return list;
  }

  // Those that are possible, with their times if memory were no matter.
  std::vector<Structure> measured(std::vector<Structure> structures) {
    std::vector<Structure> result;
    for (Structure& structure : structures) {
      if (out_of_time() && !result.empty()) break;
      const auto strategy = strategy_for(structure.spec, structure.micro_batches);
      if (!strategy) continue;
      structure.time = note(*strategy, structure.micro_batches).time;
      result.push_back(structure);
    }
    return result;
  }

  std::optional<Strategy> strategy_for(BaselineSpec spec, int64_t micro) {
    try {
      resolve(spec, problem_.machine, batch_.samples);
      Cut& part = cut(micro);
      Strategy strategy = make_baseline(spec, part.training, part.batch, problem_.machine);
      check_strategy(part.training, problem_.machine, strategy);
      return strategy;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      return std::nullopt;  // not one for this model or machine
    }
  }

  // From the mildest to the strongest.
  static std::vector<BaselineSpec> remedies(const BaselineSpec& plain) {
    std::vector<BaselineSpec> list;
    for (const int home : {0, 1, 2})
      for (const int zero : {0, 1, 2, 3}) {
        if (zero > 0 && plain.dp == 1) continue;
        for (const RecomputePolicy recompute : {RecomputePolicy::None, RecomputePolicy::Selective,
                                                RecomputePolicy::Sqrt, RecomputePolicy::Full})
          for (const bool offload : {false, true}) {
            if (offload && recompute != RecomputePolicy::None && recompute != RecomputePolicy::Full)
              continue;
            BaselineSpec spec = plain;
            spec.zero = zero;
            spec.recompute = recompute;
            spec.offload = offload;
            spec.host_update = home >= 1;
            spec.host_weights = home == 2;
            list.push_back(spec);
          }
      }
    return list;
  }

  // Simulates without limits and notes the point of the frontier.
  Evaluation note(const Strategy& strategy, int64_t micro) {
    const Evaluation free = cut(micro).evaluator->evaluate_unlimited(strategy);
    points_.emplace_back(free.peak, free.time);
    return free;
  }

  void consider(const BaselineSpec& spec, int64_t micro) {
    std::optional<Strategy> strategy = strategy_for(spec, micro);
    if (!strategy) return;
    const Evaluation free = note(*strategy, micro);
    if (!most_frugal_ || free.peak < frugal_peak_) {
      most_frugal_ = *strategy;
      frugal_peak_ = free.peak;
      frugal_micro_ = micro;
    }
    // A little slower ones may become faster when some of what they give up is kept.
    constexpr double kPromising = 1.3;
    if (best_ && static_cast<double>(free.time) >= kPromising * static_cast<double>(best_time_))
      return;
    const Evaluation inside = cut(micro).evaluator->evaluate(*strategy);
    if (!inside.fits) return;
    const bool keeps = std::ranges::all_of(
        strategy->saved, [](MemoryAction action) { return action == MemoryAction::Keep; });
    if (!keeps) fitting_.emplace_back(Candidate{*strategy, inside.time}, micro);
    if (best_ && inside.time >= best_time_) return;
    best_ = std::move(strategy);
    best_time_ = inside.time;
    best_micro_ = micro;
    if (options_.progress) options_.progress(tried(), step_time(problem_, best_time_));
  }

  SearchResult finish() {
    SearchResult result;
    result.samples = batch_.samples;
    result.frontier =
        frontier_of(points_, [&](Nanoseconds time) { return step_time(problem_, time); });
    int64_t micro = best_micro_;
    if (best_) {
      result.termination = out_of_time() ? Termination::Limit : Termination::Feasible;
      result.strategy = *best_;
      result.strategy.name = "grid";
      result.step_time = step_time(problem_, best_time_);
    } else {
      micro = frugal_micro_;
      if (most_frugal_) {
        result.strategy = *most_frugal_;
        if (const auto least = cut(micro).evaluator->least_limit(*most_frugal_))
          result.least_limit = Bytes(*least);
      } else {
        result.strategy = plain_strategy(cut(micro).training, DeviceId(size_t{0}));
      }
    }
    result.tried = tried();
    result.training = std::move(cut(micro).training);
    result.seconds = Seconds(elapsed());
    return result;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Clock::time_point begin_;
  BatchAxes batch_;
  std::map<int64_t, std::unique_ptr<Cut>> cuts_;
  std::vector<std::pair<int64_t, Nanoseconds>> points_;  // peak and time without limits
  std::vector<std::pair<Candidate, int64_t>> fitting_;   // with their micro-batches
  std::optional<Strategy> best_, most_frugal_;
  Nanoseconds best_time_ = 0;
  int64_t frugal_peak_ = 0;
  int64_t best_micro_ = 1, frugal_micro_ = 1;
};

}  // namespace

SearchResult search_grid(const Problem& problem, const SearchOptions& options) {
  return GridSearch(problem, options).run();
}

SearchResult search_all(const Problem& problem, const SearchOptions& options) {
  if (problem.machine.devices.size() == 1) return search_one_device(problem, options);
  SearchOptions half = options;
  half.time_limit = Seconds(options.time_limit.value / 2);
  SearchResult grid = search_grid(problem, half);
  half.time_limit = Seconds(std::max(0.0, options.time_limit.value - grid.seconds.value));
  SearchResult exact = search_exact(problem, half);
  const bool grid_fits = grid.termination != Termination::Infeasible;
  const bool exact_fits = exact.termination != Termination::Infeasible;
  bool use_grid = grid_fits && (!exact_fits || grid.step_time < exact.step_time);
  if (!grid_fits && !exact_fits)
    use_grid = grid.least_limit && (!exact.least_limit || *grid.least_limit < *exact.least_limit);
  SearchResult result = use_grid ? std::move(grid) : std::move(exact);
  const SearchResult& other = use_grid ? exact : grid;
  // The bound of the exact search is for strategies without a pipeline: it says nothing of others.
  result.lower_bound = work_bound(problem);
  result.frontier = merged(result.frontier, other.frontier);
  if (result.least_limit && other.least_limit)
    result.least_limit = std::min(*result.least_limit, *other.least_limit);
  if (result.termination == Termination::Optimal) result.termination = Termination::Feasible;
  result.tried += other.tried;
  result.seconds = result.seconds + other.seconds;
  return result;
}

}  // namespace windlass
