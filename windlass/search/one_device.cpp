// One device: frugal strategies first, then whatever memory is left is spent where it saves most.

#include <algorithm>
#include <chrono>
#include <map>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/search/evaluate.h"
#include "windlass/search/spend_memory.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// More micro-batches than this are tried only if fewer do not fit.
constexpr int64_t kFewMicroBatches = 4;

// The search for one number of micro-batches.
class OneCut {
 public:
  OneCut(const Problem& problem, TrainingGraph training, const BatchAxes& batch, int64_t cuts)
      : problem_(problem),
        training_(std::move(training)),
        batch_(batch),
        cuts_(cuts),
        evaluator_(problem, training_) {}

  Evaluator& evaluator() { return evaluator_; }
  TrainingGraph& training() { return training_; }

  // Strategies from the fastest to the most frugal: where weights and optimizer live, times what
  // becomes of activations.
  std::vector<Strategy> bases() {
    struct Home {
      const char* flags;
      bool together;  // weights and gradients travel in batches, or each alone
    };
    constexpr Home kHomes[] = {{"", true},
                               {",host-update=on", true},
                               {",host-update=on", false},
                               {",host-weights=on,host-update=on", true},
                               {",host-weights=on,host-update=on", false}};
    std::vector<Strategy> list;
    for (const Home& home : kHomes)
      for (const std::string actions : {"recompute=none", "recompute=full", "recompute=sqrt",
                                        "recompute=none,offload=on", "recompute=full,offload=on"}) {
        BaselineSpec spec = parse_baseline("single:" + actions + home.flags);
        spec.micro_batches = cuts_;
        spec.dp = 1;
        if (!home.together) spec.bucket = Bytes(1);
        Strategy strategy = make_baseline(spec, training_, batch_, problem_.machine);
        strategy.name = "one device";
        // Where copies wait for kernels, early ones only take memory.
        if (problem_.machine.type_of(DeviceId(size_t{0})).copies_itself) strategy.prefetch = 0;
        list.push_back(std::move(strategy));
      }
    return list;
  }

 private:
  const Problem& problem_;
  TrainingGraph training_;
  const BatchAxes& batch_;
  const int64_t cuts_;
  Evaluator evaluator_;
};

class OneDevice {
 public:
  OneDevice(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), begin_(Clock::now()) {
    batch_ = find_batch(problem.network);
  }

  SearchResult run() {
    for (int64_t cuts = 1; cuts <= std::max<int64_t>(1, batch_.samples); ++cuts) {
      if (batch_.samples > 0 && batch_.samples % cuts != 0) continue;
      if (options_.micro_batches > 0 && cuts != options_.micro_batches) continue;
      if (cuts > kFewMicroBatches && best_) break;
      if (out_of_time() && best_) break;
      if (!can_cut(cuts)) break;
      search_cut(cuts);
      if (settled_) break;
    }
    return best_ ? finish() : infeasible();
  }

 private:
  bool out_of_time() const { return elapsed() > options_.time_limit; }
  Seconds elapsed() const {
    return Seconds(std::chrono::duration<double>(Clock::now() - begin_).count());
  }
  void report(int64_t tried) {
    if (!options_.progress) return;
    std::optional<Seconds> time;
    if (best_) time = Seconds(static_cast<double>(best_->time) * 1e-9);
    options_.progress(tried, time);
  }

  // Some networks see their samples together, or have constants that differ from one to the next.
  bool can_cut(int64_t cuts) {
    if (cuts > 1 && !batch_.obstacle.empty()) return false;
    try {
      cut(cuts);
      return true;
    } catch (const Error& error) {
      if (cuts == 1 || error.kind() != ErrorKind::Input) throw;
      return false;
    }
  }

  OneCut& cut(int64_t cuts) {
    auto found = cuts_.find(cuts);
    if (found == cuts_.end()) {
      const Graph piece = cuts == 1 ? problem_.network : cut_batch(problem_.network, batch_, cuts);
      auto made =
          std::make_unique<OneCut>(problem_, differentiate(piece, problem_.training), batch_, cuts);
      found = cuts_.emplace(cuts, std::move(made)).first;
    }
    return *found->second;
  }

  void search_cut(int64_t cuts) {
    OneCut& here = cut(cuts);
    const auto out = [&] {
      report(tried());
      return out_of_time();
    };
    bool first = true;
    for (const Strategy& base : here.bases()) {
      if (out() && best_) return;
      const Evaluation found = here.evaluator().evaluate(base);
      const bool plain = first;
      first = false;
      if (!found.fits) continue;
      Candidate candidate = {base, found.time};
      if (!plain) spend_memory(here.training(), here.evaluator(), candidate, out);
      if (!best_ || candidate.time < best_->time) {
        best_ = candidate;
        best_cuts_ = cuts;
      }
      if (plain) {
        // Everything is kept where it is used: no action makes this cut faster.
        settled_ = cuts == 1;
        return;
      }
    }
  }

  int64_t tried() const {
    int64_t count = 0;
    for (const auto& [cuts, entry] : cuts_) count += entry->evaluator().evaluations();
    return count;
  }

  Seconds overhead() const {
    return problem_.cost.step_overhead(
        problem_.machine.device_types[problem_.machine.devices[0].type]);
  }

  SearchResult finish() {
    SearchResult result;
    // Nothing is proven: another cut of the batch might be a little faster.
    result.termination = !settled_ && out_of_time() ? Termination::Limit : Termination::Feasible;
    result.strategy = best_->strategy;
    result.step_time = Seconds(static_cast<double>(best_->time) * 1e-9) + overhead();
    // No strategy for a cut does less than its plain work.
    Nanoseconds least = best_->time;
    for (auto& [cuts, entry] : cuts_)
      least = std::min(least, entry->evaluator().evaluate_unlimited(entry->bases().front()).time);
    result.lower_bound = Seconds(static_cast<double>(least) * 1e-9) + overhead();
    result.training = std::move(cut(best_cuts_).training());
    return close(std::move(result));
  }

  SearchResult infeasible() {
    SearchResult result;
    std::optional<int64_t> least;
    int64_t least_cuts = 1;
    if (cuts_.empty()) cut(1);  // the only number that was allowed is none that can be tried
    for (auto& [cuts, entry] : cuts_)
      for (const Strategy& base : entry->bases()) {
        report(tried());
        // What is there from the start cannot be waited for.
        if (least && entry->evaluator().standing(base) >= *least) continue;
        const std::optional<int64_t> limit = entry->evaluator().least_limit(base);
        if (!limit || (least && *limit >= *least)) continue;
        least = limit;
        least_cuts = cuts;
        result.strategy = base;
      }
    if (least) result.least_limit = Bytes(*least);
    result.training = std::move(cut(least_cuts).training());
    return close(std::move(result));
  }

  SearchResult close(SearchResult result) {
    result.samples = batch_.samples;
    result.tried = tried();
    result.seconds = elapsed();
    return result;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const Clock::time_point begin_;
  BatchAxes batch_;
  std::map<int64_t, std::unique_ptr<OneCut>> cuts_;
  std::optional<Candidate> best_;
  int64_t best_cuts_ = 1;
  bool settled_ = false;
};

}  // namespace

SearchResult search_one_device(const Problem& problem, const SearchOptions& options) {
  if (problem.machine.devices.size() != 1)
    fail_unsupported("{}: {} devices: this search is for one", problem.machine.name,
                     problem.machine.devices.size());
  return OneDevice(problem, options).run();
}

}  // namespace windlass
